// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// inProcessHost is the server's host for in-process clients; it is never resolved.
const inProcessHost = "http://in-process"

// inProcess is a transport that calls the handler. Normal responses are made on the caller's goroutine. Streams
// (watches, logs, proxied responses) have a goroutine of their own, which ends with the request's context or when the
// body is closed.
type inProcess struct {
	handler http.Handler
	user    user.Info
}

// RoundTrip implements http.RoundTripper.
func (t *inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	in := r.WithContext(request.WithUser(ctx, t.user))
	in.RequestURI = r.URL.RequestURI()
	in.RemoteAddr = "127.0.0.1:0"
	in.Header = r.Header.Clone()
	in.Host = r.URL.Host
	if in.Body == nil {
		in.Body = http.NoBody
	}
	if streams(r) {
		return t.stream(in)
	}
	w := &unary{header: http.Header{}}
	t.handler.ServeHTTP(w, in)
	if r.Body != nil {
		_ = r.Body.Close()
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return response(r, w.code, w.header, io.NopCloser(bytes.NewReader(w.body.Bytes())), int64(w.body.Len())), nil
}

func streams(r *http.Request) bool {
	if r.Method != http.MethodGet {
		return false
	}
	return strings.Contains(r.URL.RawQuery, "watch=") || strings.Contains(r.URL.RawQuery, "follow=") ||
		strings.Contains(r.URL.Path, "/watch/") || strings.Contains(r.URL.Path, "/proxy")
}

func response(r *http.Request, code int, h http.Header, body io.ReadCloser, length int64) *http.Response {
	if code == 0 {
		code = http.StatusOK
	}
	return &http.Response{
		Status: http.StatusText(code), StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: body, ContentLength: length, Request: r,
	}
}

// unary collects a response.
type unary struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (w *unary) Header() http.Header { return w.header }

func (w *unary) WriteHeader(code int) {
	if w.code == 0 {
		w.code = code
	}
}

func (w *unary) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.body.Write(p)
}

func (w *unary) Flush() {}

func (t *inProcess) stream(r *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	in := r.WithContext(ctx)
	reader, writer := io.Pipe()
	w := &streamed{header: http.Header{}, pipe: writer, begun: make(chan struct{})}
	go func() {
		defer cancel()
		defer func() {
			w.WriteHeader(http.StatusOK)
			if p := recover(); p != nil {
				_ = writer.CloseWithError(io.ErrUnexpectedEOF)
				if p != http.ErrAbortHandler {
					panic(p)
				}
				return
			}
			_ = writer.Close()
		}()
		t.handler.ServeHTTP(w, in)
	}()
	select {
	case <-w.begun:
	case <-r.Context().Done(): // not ctx, which also ends when the handler returns
		cancel()
		err := r.Context().Err()
		_ = reader.CloseWithError(err)
		return nil, err
	}
	// the end of the context must end a blocked read
	stop := context.AfterFunc(ctx, func() { _ = writer.CloseWithError(ctx.Err()) })
	return response(r, w.code, w.sent, &streamBody{PipeReader: reader, end: func() { stop(); cancel() }}, -1), nil
}

type streamBody struct {
	*io.PipeReader
	end func()
}

// Close ends the handler.
func (b *streamBody) Close() error {
	b.end()
	return b.PipeReader.Close()
}

// streamed passes a response to the client as it is written.
type streamed struct {
	header http.Header
	sent   http.Header
	code   int
	once   sync.Once
	pipe   *io.PipeWriter
	begun  chan struct{}
}

func (w *streamed) Header() http.Header { return w.header }

func (w *streamed) WriteHeader(code int) {
	w.once.Do(func() {
		w.code, w.sent = code, w.header.Clone()
		close(w.begun)
	})
}

func (w *streamed) Write(p []byte) (int, error) {
	w.WriteHeader(http.StatusOK)
	return w.pipe.Write(p)
}

func (w *streamed) Flush() { w.WriteHeader(http.StatusOK) }

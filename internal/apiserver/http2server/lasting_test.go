// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/lasting"
)

// begin sends a request and returns its response, of which the header has come, and what ends it.
func begin(t *testing.T, client *http.Client, url string) (*http.Response, context.CancelFunc) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	return answer, cancel
}

// serving counts the goroutines that serve a stream.
func serving() int {
	buf := make([]byte, 8<<20)
	return strings.Count(string(buf[:runtime.Stack(buf, true)]), "http2server.(*stream).serve(")
}

// TestLastingResponses checks that a response goes on after its handler has returned, without a goroutine while it waits, and ends by
// itself, when the client leaves, and when the server does.
func TestLastingResponses(t *testing.T) {
	const streams = 100
	type told struct {
		response *lasting.Response
		text     chan string // closed: the response ends
	}
	all, ended := make(chan told, streams), make(chan string, streams)
	s, client := start(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		it := told{lasting.Of(w), make(chan string, 10)}
		defer lasting.After(w, func() { ended <- r.URL.Path })
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		it.response.GoOn(func() bool {
			for r.Context().Err() == nil {
				select {
				case text, more := <-it.text:
					if !more {
						return true
					}
					_, _ = io.WriteString(w, text)
					_ = http.NewResponseController(w).Flush()
				default:
					return false
				}
			}
			return true
		})
		all <- it
	})
	var tells []told
	for range streams - 1 {
		begin(t, client, s.URL+"/others")
		tells = append(tells, <-all)
	}
	one, leave := begin(t, client, s.URL+"/one")
	it := <-all
	for serving() > 0 { // they have sent their headers, and are about to wait
		runtime.Gosched()
	}
	lines := bufio.NewReader(one.Body)
	for _, text := range []string{"first\n", "second\n"} {
		it.text <- text
		it.response.Wake()
		if got, err := lines.ReadString('\n'); got != text {
			t.Fatalf("got %q, %v; want %q", got, err, text)
		}
	}
	close(tells[0].text)
	tells[0].response.Wake()
	if got := <-ended; got != "/others" {
		t.Errorf("%s ended, not the one that was to", got)
	}
	leave()
	if got := <-ended; got != "/one" {
		t.Errorf("%s ended, not the one whose client has left", got)
	}
	it.response.Wake() // after its end
	s.CloseClientConnections()
	for range streams - 2 {
		<-ended
	}
}

// TestLastingResponseEndsWell checks that what a response sends last, and its end, reach the client.
func TestLastingResponseEndsWell(t *testing.T) {
	s, client := start(t, Options{}, func(w http.ResponseWriter, _ *http.Request) {
		lasting.Of(w).GoOn(func() bool {
			_, _ = io.WriteString(w, strings.Repeat("x", 100_000))
			return true
		})
	})
	answer, err := client.Get(s.URL)
	if got := read(t, answer, err); len(got) != 100_000 {
		t.Errorf("got %d bytes", len(got))
	}
}

// TestLastingResponsePanics checks that a panic ends the response alone, of a step and of a handler that has a response go on.
func TestLastingResponsePanics(t *testing.T) {
	var ends atomic.Int64
	s, client := start(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
		defer lasting.After(w, func() { ends.Add(1) })
		if r.URL.Path == "/fine" {
			return
		}
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		lasting.Of(w).GoOn(func() bool { panic("step") })
		if r.URL.Path == "/handler" {
			panic("handler")
		}
	})
	for i, path := range []string{"/step", "/handler"} {
		answer, _ := begin(t, client, s.URL+path)
		if b, err := io.ReadAll(answer.Body); err == nil {
			t.Errorf("%s: got %q, and no error", path, b)
		}
		if got := ends.Load(); got != int64(2*i+1) {
			t.Errorf("%s: %d ends", path, got)
		}
		answer, err := client.Get(s.URL + "/fine")
		read(t, answer, err)
	}
}

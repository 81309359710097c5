// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import (
	"bufio"
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
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
	all := string(buf[:runtime.Stack(buf, true)])
	return strings.Count(all, "http2server.(*stream).serve(") + strings.Count(all, "http2server.(*steps).serve(")
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

// telling serves responses that go on, with a step, over one connection. It returns what begins one, and how often the server has written.
func telling(t *testing.T, step func(path string, w http.ResponseWriter)) (
	open func(path string) (*lasting.Response, *http.Response), writes *atomic.Int64,
) {
	t.Helper()
	writes = new(atomic.Int64)
	all := make(chan *lasting.Response, 1)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		response, begun := lasting.Of(w), false
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		response.GoOn(func() bool {
			if begun && r.Context().Err() == nil {
				step(r.URL.Path, w)
			}
			begun = true
			return r.Context().Err() != nil
		})
		all <- response
	}))
	s.Listener = writeCounter{s.Listener, writes}
	client := startWith(t, s, Options{})
	return func(path string) (*lasting.Response, *http.Response) {
		answer, _ := begin(t, client, s.URL+path)
		return <-all, answer
	}, writes
}

// writeCounter counts the writes to the connections of a listener.
type writeCounter struct {
	net.Listener
	writes *atomic.Int64
}

func (l writeCounter) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return countedWrites{c, l.writes}, err
}

type countedWrites struct {
	net.Conn
	writes *atomic.Int64
}

func (c countedWrites) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}

// wakeTogether wakes responses as one change wakes watches.
func wakeTogether(all ...*lasting.Response) {
	var begins []func()
	for _, r := range all {
		if begin := r.Rouse(); begin != nil {
			begins = append(begins, begin)
		}
	}
	for _, begin := range begins {
		begin()
	}
}

// TestStepsLeaveTogether checks that what responses of a connection say at a time leaves in a few writes.
func TestStepsLeaveTogether(t *testing.T) {
	open, writes := telling(t, func(path string, w http.ResponseWriter) {
		_, _ = io.WriteString(w, path+"\n")
		_ = http.NewResponseController(w).Flush()
	})
	const streams = 40
	var responses []*lasting.Response
	var answers []*http.Response
	for range streams {
		r, answer := open("/one")
		responses, answers = append(responses, r), append(answers, answer)
	}
	for serving() > 0 { // all of them are about to wait
		runtime.Gosched()
	}
	before := writes.Load()
	wakeTogether(responses...)
	for _, answer := range answers {
		if line, err := bufio.NewReader(answer.Body).ReadString('\n'); line != "/one\n" {
			t.Fatalf("got %q, %v", line, err)
		}
	}
	if n := writes.Load() - before; n > streams/4 {
		t.Errorf("%d writes for %d responses", n, streams)
	}
}

// TestStepsDoNotWaitForEachOther checks that responses of a connection whose steps take long, or wait for the client, do not keep others
// back, and go on themselves.
func TestStepsDoNotWaitForEachOther(t *testing.T) {
	release := make(chan struct{})
	open, _ := telling(t, func(path string, w http.ResponseWriter) {
		switch path {
		case "/long":
			<-release
		case "/large":
			_, _ = w.Write(make([]byte, 8<<20)) // the client's window is half of it
		}
		_, _ = io.WriteString(w, path+"\n")
		_ = http.NewResponseController(w).Flush()
	})
	long, longAnswer := open("/long")
	large, largeAnswer := open("/large")
	for serving() > 0 { // all of them are about to wait
		runtime.Gosched()
	}
	for range 3 { // of the others
		other, answer := open("/other")
		wakeTogether(long, large, other)
		line, err := bufio.NewReader(answer.Body).ReadString('\n')
		if line != "/other\n" {
			t.Fatalf("got %q, %v", line, err)
		}
	}
	close(release)
	if line, err := bufio.NewReader(longAnswer.Body).ReadString('\n'); line != "/long\n" {
		t.Errorf("got %q, %v", line, err)
	}
	if _, err := io.CopyN(io.Discard, largeAnswer.Body, 8<<20); err != nil {
		t.Error(err)
	}
	if line, err := bufio.NewReader(largeAnswer.Body).ReadString('\n'); line != "/large\n" {
		t.Errorf("got %q, %v", line, err)
	}
}

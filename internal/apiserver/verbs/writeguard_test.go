// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestWriteGuard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var aborted atomic.Int64
		g := writeGuard{abort: func() { aborted.Add(1) }}
		pass := func(d time.Duration) {
			time.Sleep(d)
			synctest.Wait()
		}
		for range 3 { // writes that are taken, and long pauses
			g.begin()
			pass(writeTimeout - time.Second)
			g.end()
			pass(time.Minute)
			g.begin()
			g.end()
			pass(time.Second)
		}
		if aborted.Load() != 0 {
			t.Fatal("a write was aborted that was taken in time")
		}
		g.begin()
		pass(writeTimeout - time.Second)
		if aborted.Load() != 0 {
			t.Error("a write was aborted too early")
		}
		pass(writeTimeout)
		if aborted.Load() != 1 {
			t.Errorf("a write that nobody took was aborted %d times", aborted.Load())
		}
		g.end()
		g.begin()
		g.close()
		pass(time.Hour)
		if aborted.Load() != 1 {
			t.Error("a write was aborted after the end of the guard")
		}
	})
}

// TestPassedDeadlineResetsStream relies on what abort does: a deadline that has passed ends the write of another goroutine to a client that
// reads nothing.
func TestPassedDeadlineResetsStream(t *testing.T) {
	ended := make(chan error, 1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn := http.NewResponseController(w)
		go func() { _ = conn.SetWriteDeadline(time.Unix(1, 0)) }()
		part := make([]byte, 64<<10)
		for {
			if _, err := w.Write(part); err != nil {
				ended <- err
				return
			}
		}
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	request, err := http.NewRequestWithContext(t.Context(), "GET", server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(request)
	if err == nil {
		defer response.Body.Close()
	}
	if err := <-ended; err == nil {
		t.Error("the write did not fail")
	}
}

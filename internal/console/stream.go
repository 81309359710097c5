// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// errEnded tells a handler that the browser does not read its watch any more.
var errEnded = errors.New("the watch has ended")

// stream is one watch: the response of the API server on one side, which calls its methods of http.ResponseWriter, and the events that wait
// to be sent on the other. It does not wait for the browser: a watch whose events are more than it may hold ends.
type stream struct {
	id     int64
	most   int     // bytes of events
	all    *budget // of the events of all watches
	wake   func()
	cancel context.CancelFunc

	header http.Header // of the response; the handler's goroutine alone uses it and the next two
	code   int
	part   []byte // the begin of an event, or the body of a refusal

	mu     sync.Mutex
	events [][]byte // whole events, as JSON
	bytes  int
	ended  bool
	status *metav1.Status // why the watch ended; nil: by itself
}

// serve lets the API serve the watch, and ends it.
func (s *stream) serve(api http.Handler, r *http.Request) {
	defer func() {
		if p := recover(); p != nil {
			if p != http.ErrAbortHandler {
				panic(p)
			}
			s.end(nil)
		}
	}()
	api.ServeHTTP(s, r)
	if s.code == 0 || s.code == http.StatusOK {
		s.end(nil)
		return
	}
	refused := &metav1.Status{}
	if err := json.Unmarshal(s.part, refused); err != nil || refused.Kind != "Status" {
		*refused = statusOf(s.code, fmt.Sprintf("the server answered %d %s: %s", s.code, http.StatusText(s.code), s.part[:min(len(s.part), 500)]))
	}
	refused.Code = int32(s.code)
	s.end(refused)
}

// Header implements [http.ResponseWriter].
func (s *stream) Header() http.Header { return s.header }

// WriteHeader implements [http.ResponseWriter].
func (s *stream) WriteHeader(code int) {
	if s.code == 0 {
		s.code = code
	}
}

// Flush implements [http.Flusher]: whole events are ready when they are written.
func (s *stream) Flush() { s.WriteHeader(http.StatusOK) }

// Write takes a part of the response: events, one after the other, with a line break at the end of each.
func (s *stream) Write(p []byte) (int, error) {
	s.WriteHeader(http.StatusOK)
	if s.code != http.StatusOK {
		s.part = append(s.part, p[:min(len(p), max(0, bodyBytes-len(s.part)))]...)
		return len(p), nil
	}
	n := len(p)
	for len(p) > 0 {
		line, rest, whole := bytes.Cut(p, []byte("\n"))
		s.part = append(s.part, line...)
		if len(s.part) > eventBytes {
			status := statusOf(http.StatusInternalServerError, fmt.Sprintf("an event is longer than %d bytes", eventBytes))
			s.end(&status)
			return 0, errEnded
		}
		p = rest
		if !whole {
			continue
		}
		event := bytes.TrimSpace(s.part)
		if len(event) > 0 && !json.Valid(event) {
			s.part = append(s.part, '\n') // an event of several lines
			continue
		}
		s.part = nil
		if len(event) > 0 && !s.add(event) {
			return 0, errEnded
		}
	}
	return n, nil
}

// add adds an event, which the stream owns now; false: the watch has ended.
func (s *stream) add(event []byte) bool {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return false
	}
	if s.bytes > 0 && s.bytes+len(event) > s.most || !s.all.take(len(event)) {
		s.mu.Unlock()
		status := statusOf(http.StatusGone, "the browser reads this watch too slowly: list again")
		s.end(&status)
		return false
	}
	s.events, s.bytes = append(s.events, event), s.bytes+len(event)
	s.mu.Unlock()
	s.wake()
	return true
}

// end ends the watch. Of several reasons the first counts. Events that wait are dropped if there is one: the browser lists again.
func (s *stream) end(why *metav1.Status) {
	s.mu.Lock()
	if !s.ended {
		s.ended, s.status = true, why
		if why != nil {
			s.drop()
		}
	}
	s.mu.Unlock()
	s.cancel()
	s.wake()
}

// drop drops the events that wait. The caller holds the lock.
func (s *stream) drop() {
	s.all.give(s.bytes)
	s.events, s.bytes = nil, 0
}

// leave ends a watch whose connection has ended.
func (s *stream) leave() {
	s.end(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drop()
}

func (s *stream) isEnded() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ended
}

// take returns the next message; nil: there is none. more reports whether there may be another one, last that the watch has no more after
// this.
func (s *stream) take() (message []byte, more, last bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	head := append(append([]byte(`{"id":`), strconv.FormatInt(s.id, 10)...), ',')
	if len(s.events) == 0 {
		if !s.ended {
			return nil, false, false
		}
		b, err := json.Marshal(s.status)
		if err != nil {
			b = []byte("null") // a Status can always be encoded
		}
		return append(append(append(head, `"end":`...), b...), '}'), false, true
	}
	n, size := 0, 0
	for n < len(s.events) && (n == 0 || size+len(s.events[n]) <= messageBytes) {
		size += len(s.events[n]) + 1
		n++
	}
	message = append(make([]byte, 0, len(head)+size+16), head...)
	message = append(message, `"events":[`...)
	for i, e := range s.events[:n] {
		if i > 0 {
			message = append(message, ',')
		}
		message = append(message, e...)
		s.bytes -= len(e)
		s.all.give(len(e))
	}
	s.events = s.events[n:]
	return append(message, `]}`...), len(s.events) > 0 || s.ended, false
}

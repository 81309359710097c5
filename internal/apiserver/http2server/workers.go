// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import "sync"

// workers serve the streams of the connections to one address, in goroutines that are used again, whose stacks have grown to what a
// handler needs.
//
// All of them inherit the profiler labels of the goroutine that serves the first of these connections. So a listener that labels the
// goroutines of its connections, as package cluster does, labels the handlers, too.
type workers struct {
	begin chan *stream

	mu    sync.Mutex
	idle  []chan *stream
	ended bool
}

// newWorkers returns workers with the labels of the calling goroutine.
func newWorkers() *workers {
	w := &workers{begin: make(chan *stream, 1)}
	go func() {
		for st := range w.begin {
			go w.work(st)
		}
	}()
	return w
}

// run has a worker serve a stream.
func (w *workers) run(st *stream) {
	w.mu.Lock()
	if n := len(w.idle); n > 0 {
		to := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.mu.Unlock()
		to <- st // has room for one
		return
	}
	if w.ended { // a handler outlasts its connection
		w.mu.Unlock()
		go w.work(st)
		return
	}
	defer w.mu.Unlock()
	w.begin <- st // another goroutine begins it, for this one may have other labels
}

// work serves a stream, and then others.
func (w *workers) work(st *stream) {
	var more chan *stream
	for st != nil {
		st.serve()
		if more == nil {
			more = make(chan *stream, 1)
		}
		w.mu.Lock()
		if w.ended || len(w.idle) >= maxWorkers {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, more)
		w.mu.Unlock()
		st = <-more
	}
}

// end ends the workers that wait.
func (w *workers) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ended = true
	close(w.begin)
	for _, c := range w.idle {
		close(c)
	}
	w.idle = nil
}

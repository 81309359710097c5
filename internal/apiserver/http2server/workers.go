// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import "sync"

// job is a worker's work: a stream, or the steps of a connection.
type job interface{ serve() }

// workers serve the streams of the connections to one address, in goroutines that are used again, whose stacks have grown to what a
// handler needs.
//
// All of them inherit the profiler labels of the goroutine that serves the first of these connections. So a listener that labels the
// goroutines of its connections, as package cluster does, labels the handlers, too.
type workers struct {
	begin chan job

	mu    sync.Mutex
	idle  []chan job
	ended bool
}

// newWorkers returns workers with the labels of the calling goroutine.
func newWorkers() *workers {
	w := &workers{begin: make(chan job, 1)}
	go func() {
		for j := range w.begin {
			go w.work(j)
		}
	}()
	return w
}

// run has a worker do a job.
func (w *workers) run(j job) {
	w.mu.Lock()
	if n := len(w.idle); n > 0 {
		to := w.idle[n-1]
		w.idle = w.idle[:n-1]
		w.mu.Unlock()
		to <- j // has room for one
		return
	}
	if w.ended { // a handler outlasts its connection
		w.mu.Unlock()
		go w.work(j)
		return
	}
	defer w.mu.Unlock()
	w.begin <- j // another goroutine begins it, for this one may have other labels
}

// work does a job, and then others.
func (w *workers) work(j job) {
	var more chan job
	for j != nil {
		j.serve()
		if more == nil {
			more = make(chan job, 1)
		}
		w.mu.Lock()
		if w.ended || len(w.idle) >= maxWorkers {
			w.mu.Unlock()
			return
		}
		w.idle = append(w.idle, more)
		w.mu.Unlock()
		j = <-more
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

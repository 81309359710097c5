// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package lasting lets a response go on after its handler has returned, so that a watch that waits for events needs no goroutine.
//
// A server that supports this has response writers that implement [Writer]. The contract has three parts:
//
//   - The handler calls [Response.GoOn] with a step, and returns. The server then calls the step, and again after each call of wake, until
//     the step reports that the response has ended. Wake is also called when the request's context ends. The step may use the response
//     writer as the handler could; steps of one response do not overlap.
//   - The stages before the handler pass what they would do in a deferred function to [After] or [Recover]. These call it at once if the
//     response ends with the handler, and otherwise when it has ended: the innermost first, as deferred functions. A stage
//     that has not been changed so must not be in front of a handler that calls GoOn.
//   - A panic of a step ends the response. It passes through the functions that [Recover] was given, as it would through the stages.
//
// With other servers [Of] returns nil, and the handler has to wait until its response has ended.
//
// Worked example: flow control counts a watch, and audit records its end. The handler of the watch returns; flow control's After and then
// audit's Recover keep their functions. An hour later the client leaves, wake is called, and the step reports the end. The server calls
// flow control's function, then audit's, and closes the stream.
package lasting

import (
	"net/http"
	"sync/atomic"
)

// Writer is a response writer of a server that supports responses that go on.
type Writer interface {
	Lasting() *Response
}

// Of returns the response of a response writer, or of one that it wraps; nil: it ends when its handler returns.
func Of(w http.ResponseWriter) *Response {
	for {
		if l, ok := w.(Writer); ok {
			return l.Lasting()
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return nil
		}
		w = u.Unwrap()
	}
}

// After calls f, or has it called when a response that goes on has ended. It is for deferred calls.
func After(w http.ResponseWriter, f func()) {
	r := Of(w)
	if r == nil || r.step == nil {
		f()
		return
	}
	r.ends = append(r.ends, func(panicked any) {
		f()
		if panicked != nil {
			panic(panicked)
		}
	})
}

// Recover calls f with a recovered value, nil if there is none, or has it called when a response that goes on has ended, with the value of
// a panic of its step. It is for deferred functions that call recover. What f panics with passes on to the stage before.
func Recover(w http.ResponseWriter, recovered any, f func(recovered any)) {
	if r := Of(w); r != nil && r.step != nil {
		if recovered == nil {
			r.ends = append(r.ends, f)
			return
		}
		recovered = r.End(recovered) // a later stage has panicked: the response does not go on
	}
	f(recovered)
}

// Response is what a server keeps of a response that goes on. Its zero value is one that does not.
type Response struct {
	run  func() (begin func()) // has another goroutine call Run, when begin is called; begin is nil: that is under way
	step func() (ended bool)
	ends []func(panicked any)
	at   atomic.Int32
}

// The states of a response that goes on.
const (
	running int32 = iota // its handler or Run
	again                // the same, and it was woken meanwhile
	waiting
	over
)

// GoOn has the response go on when the handler has returned. The handler calls it once.
func (r *Response) GoOn(step func() (ended bool)) { r.step = step }

// Wake has the server call the step. It does not block, and may be called from any goroutine and at any time, also before GoOn and after
// the end.
func (r *Response) Wake() {
	if begin := r.Rouse(); begin != nil {
		begin()
	}
}

// Rouse is Wake in two parts: the caller calls begin, unless it is nil. A caller that wakes many responses rouses all of them before it
// calls the first begin. Then the server takes the steps of all responses of one connection in one go.
func (r *Response) Rouse() (begin func()) {
	for {
		switch at := r.at.Load(); at {
		case again, over:
			return nil
		case running:
			if r.at.CompareAndSwap(running, again) {
				return nil
			}
		case waiting:
			if r.at.CompareAndSwap(waiting, running) {
				return r.run()
			}
		}
	}
}

// GoesOn reports whether the handler has called GoOn. The server asks after the handler has returned.
func (r *Response) GoesOn() bool { return r.step != nil }

// Run calls the step until the response has ended, or waits to be woken: then run is called, and returns what has another goroutine call
// Run again, nil if that is under way. Run returns whether the response has ended, after the functions of the stages, and the value of a
// panic that none of them recovered.
func (r *Response) Run(run func() (begin func())) (ended bool, panicked any) {
	r.run = run
	for {
		if ended, panicked = r.take(); ended {
			return true, panicked
		}
		if r.at.CompareAndSwap(running, waiting) {
			return false, nil
		}
		r.at.Store(running) // it was woken: nothing else leaves the state again
	}
}

// End calls the functions of the stages. The server calls it itself if the handler panics after GoOn.
func (r *Response) End(panicked any) any {
	r.at.Store(over)
	ends := r.ends
	r.step, r.ends = nil, nil
	for _, f := range ends {
		panicked = call(f, panicked)
	}
	return panicked
}

// take calls the step, and End after it if the response has ended.
func (r *Response) take() (ended bool, panicked any) {
	defer func() {
		if p := recover(); p != nil {
			ended, panicked = true, r.End(p) // here, for the functions to find the panic's stack
		}
	}()
	if !r.step() {
		return false, nil
	}
	return true, r.End(nil)
}

// call returns what f panics with.
func call(f func(any), with any) (panicked any) {
	defer func() { panicked = recover() }()
	f(with)
	return nil
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package lasting

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// writer is a response writer whose response may go on.
type writer struct {
	http.ResponseWriter
	response Response
}

func (w *writer) Lasting() *Response { return &w.response }

// wrapped is a writer of a stage.
type wrapped struct{ http.ResponseWriter }

func (w wrapped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// stages are two stages before a handler, which note what they do.
func stages(w http.ResponseWriter, noted *[]string, handler func(w http.ResponseWriter)) {
	note := func(s string) { *noted = append(*noted, s) }
	defer func() {
		Recover(w, recover(), func(p any) {
			if p != nil {
				note("outer recovers")
				return
			}
			note("outer ends")
		})
	}()
	func(w http.ResponseWriter) {
		defer After(w, func() { note("inner ends") })
		handler(w)
		note("handler returns")
	}(wrapped{w})
}

func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		handler func(w http.ResponseWriter)
		want    string
	}{
		"without going on": {func(http.ResponseWriter) {}, "handler returns, inner ends, outer ends"},
		"panic of a handler": {func(http.ResponseWriter) { panic("x") },
			"inner ends, outer recovers"},
		"panic after going on": {func(w http.ResponseWriter) { Of(w).GoOn(func() bool { return true }); panic("x") },
			"inner ends, outer recovers"},
		"going on": {func(w http.ResponseWriter) { Of(w).GoOn(func() bool { return true }) },
			"handler returns, run, inner ends, outer ends"},
		"panic of a step": {func(w http.ResponseWriter) { Of(w).GoOn(func() bool { panic("x") }) },
			"handler returns, run, inner ends, outer recovers"},
	} {
		var noted []string
		w := &writer{ResponseWriter: httptest.NewRecorder()}
		stages(w, &noted, c.handler)
		if r := &w.response; r.GoesOn() {
			noted = append(noted, "run")
			if ended, p := r.Run(func() func() { t.Errorf("%s: it runs elsewhere", name); return nil }); !ended || p != nil {
				t.Errorf("%s: ended %v, panic %v", name, ended, p)
			}
		}
		if got := strings.Join(noted, ", "); got != c.want {
			t.Errorf("%s: %s; want %s", name, got, c.want)
		}
	}
	if plain := httptest.NewRecorder(); Of(plain) != nil || Of(wrapped{plain}) != nil {
		t.Error("the response of a server that ends it with its handler goes on")
	}
}

// TestPanicPassesOn checks that a panic that no stage recovers reaches the server, and one that a stage changes as that.
func TestPanicPassesOn(t *testing.T) {
	w := &writer{}
	w.response.GoOn(func() bool { panic("first") })
	After(w, func() {})
	Recover(w, nil, func(p any) {
		if p != "first" {
			t.Errorf("the stage gets %v", p)
		}
		panic("second")
	})
	After(w, func() {})
	if ended, p := w.response.Run(nil); !ended || p != "second" {
		t.Errorf("ended %v, panic %v", ended, p)
	}
}

// TestWake checks that each wake is followed by a step, that steps do not overlap, and that nothing runs after the end.
func TestWake(t *testing.T) {
	r := &Response{}
	steps, runs, inStep := 0, 0, func() {}
	r.Wake() // before it goes on
	r.GoOn(func() bool {
		steps++
		inStep()
		return steps == 4
	})
	run := func() func() { return func() { runs++ } }
	if ended, _ := r.Run(run); ended || steps != 2 || runs != 0 {
		t.Fatalf("ended %v after %d steps, %d more runs", ended, steps, runs)
	}
	r.Wake()
	r.Wake() // the run has not begun
	if runs != 1 {
		t.Fatalf("%d runs for two wakes", runs)
	}
	inStep = func() {
		r.Wake()
		if runs != 1 {
			t.Error("a step overlaps another")
		}
		inStep = func() {}
	}
	if ended, _ := r.Run(run); !ended || steps != 4 {
		t.Fatalf("ended %v after %d steps", ended, steps)
	}
	r.Wake()
	if runs != 1 {
		t.Error("it runs after its end")
	}
}

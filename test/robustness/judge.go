// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package robustness

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// The promises that a history can break.
var (
	ErrLost            = errors.New("an acknowledged write is lost")
	ErrForeign         = errors.New("the store has a change that no client made, or another state before it")
	ErrNotLinearizable = errors.New("no order of the operations is possible")
	ErrUndecided       = errors.New("it was not found out in time whether an order of the operations is possible")
	ErrMissed          = errors.New("a watch missed an event")
	ErrDoubled         = errors.New("a watch received an event twice")
	ErrDisordered      = errors.New("a watch received an event out of order")
	ErrWrongEvent      = errors.New("a watch received an event that differs from the change")
	ErrBookmark        = errors.New("a watch received an event that a bookmark had said was received")
)

// judgeTime bounds the search for an order.
const judgeTime = time.Minute

// Judge returns which promises the history breaks, with the first place of each kind.
func Judge(h History) error {
	all := append([]error{judgeLog(h), judgeWrites(h)}, judgeWatches(h)...)
	if err := errors.Join(all...); err != nil {
		return err // the order would say the same, less clearly
	}
	return linearizable(h, judgeTime)
}

// judgeLog checks that each change is of a write that a client sent, once, and follows on the one before.
func judgeLog(h History) error {
	sent := map[string]string{} // names by value
	for _, o := range h.Operations {
		if o.writes() && o.Verb != Delete {
			sent[o.Value] = o.Name
		}
	}
	newest := map[string]int64{}
	var last int64
	for _, e := range h.Log {
		if e.Revision <= last || e.Previous != newest[e.Name] {
			return fmt.Errorf("%w: %+v after revision %d, and after %d of this object", ErrForeign, e, last, newest[e.Name])
		}
		last, newest[e.Name] = e.Revision, e.Revision
		if e.Value == "" {
			newest[e.Name] = 0
			continue
		}
		if name, ok := sent[e.Value]; !ok || name != e.Name {
			return fmt.Errorf("%w: %+v", ErrForeign, e)
		}
		delete(sent, e.Value)
	}
	return nil
}

// judgeWrites checks that each acknowledged write is the change of the revision that its answer tells.
func judgeWrites(h History) error {
	for _, o := range h.Operations {
		if !o.writes() || o.Verb == Delete || o.Outcome != Done {
			continue
		}
		e, ok := change(h.Log, o.Revision)
		if !ok || e.Name != o.Name || e.Value != o.Value {
			return fmt.Errorf("%w: %s by %s, the change of this revision is %+v", ErrLost, describe(o), o.Server, e)
		}
	}
	return nil
}

// change returns the change of a revision.
func change(log []Event, revision int64) (Event, bool) {
	i, found := slices.BinarySearchFunc(log, revision, func(e Event, r int64) int { return int(e.Revision - r) })
	if !found {
		return Event{}, false
	}
	return log[i], true
}

// judgeWatches checks that each watch has received each event once, in order, and as it is.
func judgeWatches(h History) []error {
	var out []error
	for _, w := range h.Watches {
		if err := judgeWatch(h.Log, w); err != nil {
			out = append(out, fmt.Errorf("the watch of client %d: %w", w.Client, err))
		}
	}
	return out
}

func judgeWatch(log []Event, w Watch) error {
	var due []Event
	for _, e := range log {
		if e.Revision > w.After && (w.Name == "" || w.Name == e.Name) {
			due = append(due, e)
		}
	}
	received := map[int64]bool{}
	last, bookmark, next := w.After, w.After, 0
	for i, n := range w.Notes {
		if n.Type == "BOOKMARK" {
			if n.Revision < last {
				return fmt.Errorf("%w: note %d, %+v, after %d", ErrDisordered, i, n, last)
			}
			last, bookmark = n.Revision, n.Revision
			if next < len(due) && due[next].Revision <= bookmark {
				return fmt.Errorf("%w: %+v, when note %d, %+v, was received", ErrMissed, due[next], i, n)
			}
			continue
		}
		switch {
		case received[n.Revision]:
			return fmt.Errorf("%w: note %d, %+v", ErrDoubled, i, n)
		case n.Revision <= bookmark:
			return fmt.Errorf("%w: note %d, %+v, after %d", ErrBookmark, i, n, bookmark)
		case n.Revision <= last:
			return fmt.Errorf("%w: note %d, %+v, after %d", ErrDisordered, i, n, last)
		case next < len(due) && n.Revision > due[next].Revision:
			return fmt.Errorf("%w: %+v, when note %d, %+v, was received", ErrMissed, due[next], i, n)
		case next == len(due) || !same(log, due[next], n):
			return fmt.Errorf("%w: note %d, %+v", ErrWrongEvent, i, n)
		}
		received[n.Revision], last = true, n.Revision
		next++
	}
	if next < len(due) {
		return fmt.Errorf("%w: %+v, and %d after it", ErrMissed, due[next], len(due)-next-1)
	}
	return nil
}

// same reports whether a note tells of a change. That of a deletion shows the object as it was before.
func same(log []Event, e Event, n Note) bool {
	want := Note{Type: "MODIFIED", Name: e.Name, Value: e.Value, Revision: e.Revision, Server: n.Server, Stream: n.Stream}
	switch {
	case e.Value == "":
		before, _ := change(log, e.Previous)
		want.Type, want.Value = "DELETED", before.Value
	case e.Previous == 0:
		want.Type = "ADDED"
	}
	return n == want
}

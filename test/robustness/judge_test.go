// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package robustness

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
)

// ideal returns a history of a store without faults, whose requests overlap, and of which some have an unknown outcome.
func ideal(seed uint64) History {
	r := rand.New(rand.NewPCG(seed, 0))
	var h History
	objects := map[string]Object{}
	revision := int64(100)
	for i := range 300 {
		now := time.Duration(i+1) * 10
		o := Operation{
			Client: i % 5, Name: fmt.Sprint("k", r.IntN(4)), Value: fmt.Sprint("v", i), Outcome: Done,
			Call: now - time.Duration(r.IntN(30)), Return: now + time.Duration(r.IntN(30)),
		}
		o.Verb = []Verb{Create, Create, Update, Put, Delete, Get, List}[r.IntN(7)]
		current, exists := objects[o.Name]
		if o.Verb == Update || o.Verb == Delete && i%2 == 0 {
			if o.Expect = current.Revision; r.IntN(4) == 0 || !exists {
				o.Expect = 101
			}
		}
		revision += int64(r.IntN(3)) // of others
		write := func(value string) {
			revision++
			h.Log = append(h.Log, Event{Revision: revision, Name: o.Name, Value: value, Previous: current.Revision})
			if delete(objects, o.Name); value != "" {
				objects[o.Name] = Object{Name: o.Name, Value: value, Revision: revision}
				o.Revision = revision
			}
		}
		switch {
		case o.Verb == List:
			o.Name, o.Revision = "", revision
			for _, object := range objects {
				o.Objects = append(o.Objects, object)
			}
			slices.SortFunc(o.Objects, func(a, b Object) int { return strings.Compare(a.Name, b.Name) })
		case o.Verb == Create && exists, o.Expect != 0 && exists && o.Expect != current.Revision:
			o.Outcome = Conflict
		case o.Verb == Create:
			write(o.Value)
		case !exists:
			o.Outcome = NotFound
		case o.Verb == Get:
			o.Objects = []Object{current}
		case o.Verb == Delete:
			write("")
		default:
			write(o.Value)
		}
		if !o.writes() || o.Verb == Delete {
			o.Value = ""
		}
		if o.writes() && r.IntN(12) == 0 {
			o.Outcome, o.Revision = Unknown, 0
		}
		h.Operations = append(h.Operations, o)
	}
	for client, name := range []string{"", "k1"} {
		w := Watch{Client: client, Name: name, After: 110}
		for _, e := range h.Log {
			if e.Revision <= w.After {
				continue
			}
			if r.IntN(10) == 0 {
				w.Notes = append(w.Notes, Note{Type: "BOOKMARK", Revision: e.Revision - 1})
			}
			if name == "" || name == e.Name {
				w.Notes = append(w.Notes, told(h.Log, e))
			}
		}
		h.Watches = append(h.Watches, w)
	}
	return h
}

func told(log []Event, e Event) Note {
	n := Note{Type: "MODIFIED", Name: e.Name, Value: e.Value, Revision: e.Revision}
	switch {
	case e.Value == "":
		before, _ := change(log, e.Previous)
		n.Type, n.Value = "DELETED", before.Value
	case e.Previous == 0:
		n.Type = "ADDED"
	}
	return n
}

// find returns the index of some operation in the middle that holds.
func find(t *testing.T, h History, holds func(Operation) bool) int {
	t.Helper()
	for i := len(h.Operations) / 3; i < len(h.Operations); i++ {
		if holds(h.Operations[i]) {
			return i
		}
	}
	t.Fatal("the history has no such operation")
	return 0
}

func TestIdealHistories(t *testing.T) {
	for seed := range uint64(20) {
		if err := Judge(ideal(seed)); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}
}

// TestPlantedFaults: the judge finds what a faulty server would do.
func TestPlantedFaults(t *testing.T) {
	acknowledged := func(v Verb) func(Operation) bool {
		return func(o Operation) bool { return o.Verb == v && o.Outcome == Done }
	}
	for name, test := range map[string]struct {
		plant func(*testing.T, *History)
		want  error
	}{
		"a stale get": {func(t *testing.T, h *History) {
			i := find(t, *h, func(o Operation) bool {
				return acknowledged(Get)(o) && o.Objects[0].Revision != o.Revision && before(h.Log, o.Objects[0]) != nil
			})
			h.Operations[i].Objects = []Object{*before(h.Log, h.Operations[i].Objects[0])}
			h.Operations[i].Call = h.Operations[i].Return // long after what it does not show
			h.Operations[i].Return++
			h.Operations = apart(h.Operations, i)
		}, ErrNotLinearizable},
		"a get that does not find what is there": {func(t *testing.T, h *History) {
			i := find(t, *h, acknowledged(Get))
			h.Operations[i].Outcome, h.Operations[i].Objects = NotFound, nil
			h.Operations = apart(h.Operations, i)
		}, ErrNotLinearizable},
		"a stale list": {func(t *testing.T, h *History) {
			i := find(t, *h, acknowledged(List))
			j := 3 + find(t, History{Operations: h.Operations[i+3:]}, acknowledged(List)) + i
			h.Operations[j].Revision, h.Operations[j].Objects = h.Operations[i].Revision, h.Operations[i].Objects
			h.Operations = apart(h.Operations, j)
		}, ErrNotLinearizable},
		"a list of two revisions": {func(t *testing.T, h *History) {
			i := find(t, *h, func(o Operation) bool {
				return o.Verb == List && len(o.Objects) > 1 && before(h.Log, o.Objects[1]) != nil
			})
			h.Operations[i].Objects = slices.Clone(h.Operations[i].Objects)
			h.Operations[i].Objects[1] = *before(h.Log, h.Operations[i].Objects[1])
		}, ErrNotLinearizable},
		"a list without an object": {func(t *testing.T, h *History) {
			i := find(t, *h, func(o Operation) bool { return o.Verb == List && len(o.Objects) > 1 })
			h.Operations[i].Objects = h.Operations[i].Objects[1:]
		}, ErrNotLinearizable},
		"a conflict without a reason": {func(t *testing.T, h *History) {
			i := find(t, *h, acknowledged(Get))
			o := h.Operations[i]
			o.Verb, o.Expect, o.Value, o.Outcome, o.Objects = Update, o.Objects[0].Revision, "never", Conflict, nil
			h.Operations[i] = o
			h.Operations = apart(h.Operations, i)
		}, ErrNotLinearizable},
		"two updates of one resourceVersion": {func(t *testing.T, h *History) {
			i := find(t, *h, acknowledged(Put))
			e, _ := change(h.Log, h.Operations[i].Revision)
			last, _ := change(h.Log, e.Previous)
			h.Operations[i].Verb, h.Operations[i].Expect = Update, max(last.Previous, 1)
		}, ErrNotLinearizable},
		"a lost write": {func(t *testing.T, h *History) {
			i := find(t, *h, func(o Operation) bool { return acknowledged(Create)(o) })
			h.Operations[i].Value = "lost"
			h.Operations = append(h.Operations, Operation{Verb: Create, Name: h.Operations[i].Name, Value: value(h.Log, h.Operations[i].Revision),
				Outcome: Unknown, Call: h.Operations[i].Call, Return: h.Operations[i].Return})
		}, ErrLost},
		"a write at no revision": {func(t *testing.T, h *History) {
			h.Operations = append(h.Operations, Operation{Verb: Create, Name: "k9", Value: "lost", Outcome: Done, Revision: 1 << 40,
				Call: 1 << 20, Return: 1 << 21})
		}, ErrLost},
		"a delete that did nothing": {func(t *testing.T, h *History) {
			h.Operations = append(h.Operations, Operation{Verb: Delete, Name: "k9", Outcome: Done, Call: 1 << 20, Return: 1 << 21})
		}, ErrNotLinearizable},
		"a refused write that was carried out": {func(t *testing.T, h *History) {
			i := find(t, *h, acknowledged(Create))
			h.Operations[i].Outcome, h.Operations[i].Revision = Conflict, 0
		}, ErrNotLinearizable},
		"a write that was carried out twice": {func(t *testing.T, h *History) {
			last := h.Log[len(h.Log)-1]
			for last.Value == "" {
				h.Log = h.Log[:len(h.Log)-1]
				last = h.Log[len(h.Log)-1]
			}
			h.Log = append(h.Log, Event{Revision: last.Revision + 1, Name: last.Name, Value: last.Value, Previous: last.Revision})
		}, ErrForeign},
		"an event of nobody": {func(t *testing.T, h *History) {
			h.Log = append(h.Log, Event{Revision: 1 << 40, Name: "k9", Value: "nobody"})
		}, ErrForeign},
		"a doubled event":         {notes(func(n []Note) []Note { return slices.Insert(n, 9, n[8]) }), ErrDoubled},
		"an event again, later":   {notes(func(n []Note) []Note { return slices.Insert(n, 20, n[8]) }), ErrDoubled},
		"a missed event":          {notes(func(n []Note) []Note { return slices.Delete(n, 8, 9) }), ErrMissed},
		"the last event missed":   {notes(func(n []Note) []Note { return n[:len(n)-1] }), ErrMissed},
		"two events out of order": {notes(func(n []Note) []Note { n[8], n[9] = n[9], n[8]; return n }), ErrMissed},
		"an event of the past":    {notes(func(n []Note) []Note { n[9].Revision = n[8].Revision - 1; return n }), ErrDisordered},
		"an event of another type": {notes(func(n []Note) []Note {
			n[9].Type = map[string]string{"ADDED": "MODIFIED", "MODIFIED": "ADDED", "DELETED": "MODIFIED"}[n[9].Type]
			return n
		}), ErrWrongEvent},
		"an event of another value": {notes(func(n []Note) []Note { n[9].Value = "other"; return n }), ErrWrongEvent},
		"a bookmark too early": {notes(func(n []Note) []Note {
			return slices.Insert(n, 9, Note{Type: "BOOKMARK", Revision: n[9].Revision})
		}), ErrMissed},
		"a bookmark that goes back": {notes(func(n []Note) []Note {
			return slices.Insert(n, 9, Note{Type: "BOOKMARK", Revision: n[8].Revision - 1})
		}), ErrDisordered},
		"an event after its bookmark": {notes(func(n []Note) []Note {
			n[9].Revision = n[8].Revision
			return slices.Insert(n, 9, Note{Type: "BOOKMARK", Revision: n[8].Revision}, Note{Type: "MODIFIED", Revision: n[8].Revision - 1})
		}), ErrBookmark},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(5) {
				h := ideal(seed)
				test.plant(t, &h)
				if err := Judge(h); !errors.Is(err, test.want) {
					t.Errorf("seed %d: %v, want %v", seed, err, test.want)
				}
			}
		})
	}
}

// notes changes what the first watch received; bookmarks are removed before.
func notes(change func([]Note) []Note) func(*testing.T, *History) {
	return func(_ *testing.T, h *History) {
		w := &h.Watches[0]
		w.Notes = change(slices.DeleteFunc(w.Notes, func(n Note) bool { return n.Type == "BOOKMARK" }))
	}
}

// before returns the object that a change replaced, nil if it created one.
func before(log []Event, object Object) *Object {
	e, _ := change(log, object.Revision)
	last, ok := change(log, e.Previous)
	if !ok {
		return nil
	}
	return &Object{Name: last.Name, Value: last.Value, Revision: last.Revision}
}

func value(log []Event, revision int64) string {
	e, _ := change(log, revision)
	return e.Value
}

// apart moves the operations after one to later, so that none overlaps it, and those before it to earlier.
func apart(all []Operation, i int) []Operation {
	all = slices.Clone(all)
	at := time.Duration(i+1) * 10
	for j := range all {
		switch {
		case j < i:
			all[j].Call, all[j].Return = min(all[j].Call, at-1), min(all[j].Return, at-1)
		case j > i:
			all[j].Call, all[j].Return = max(all[j].Call, at+2), max(all[j].Return, at+3)
		}
	}
	all[i].Call, all[i].Return = at, at+1
	return all
}

// TestUnknownOutcomes: a request whose outcome is unknown may have been carried out, or not, and nothing else.
func TestUnknownOutcomes(t *testing.T) {
	create := Operation{Verb: Create, Name: "k", Value: "a", Call: 1, Return: 2, Outcome: Done, Revision: 5}
	unknown := Operation{Client: 1, Verb: Delete, Name: "k", Call: 3, Return: 4, Outcome: Unknown}
	get := func(at time.Duration, found bool) Operation {
		o := Operation{Client: 2, Verb: Get, Name: "k", Call: at, Return: at + 1, Outcome: NotFound}
		if found {
			o.Outcome, o.Objects = Done, []Object{{Name: "k", Value: "a", Revision: 5}}
		}
		return o
	}
	log := []Event{{Revision: 5, Name: "k", Value: "a"}}
	gone := append(slices.Clone(log), Event{Revision: 7, Name: "k", Previous: 5})
	for name, test := range map[string]struct {
		log   []Event
		reads []Operation
		want  error
	}{
		"not carried out":             {log, []Operation{get(10, true)}, nil},
		"carried out":                 {gone, []Operation{get(10, false)}, nil},
		"carried out late":            {gone, []Operation{get(10, true), get(20, false)}, nil},
		"undone":                      {gone, []Operation{get(10, false), get(20, true)}, ErrNotLinearizable},
		"not carried out, but seen":   {log, []Operation{get(10, false)}, ErrNotLinearizable},
		"carried out before its call": {gone, []Operation{get(2, false), get(10, false)}, ErrNotLinearizable},
	} {
		if name == "carried out before its call" {
			create.Return = 1
		}
		h := History{Log: test.log, Operations: append([]Operation{create, unknown}, test.reads...)}
		if name == "carried out before its call" {
			h.Operations[2].Return = 2
		}
		if err := Judge(h); !errors.Is(err, test.want) || (test.want == nil) != (err == nil) {
			t.Errorf("%s: %v, want %v", name, err, test.want)
		}
	}
}

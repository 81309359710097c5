// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extension

import (
	"slices"
	"time"
)

// Waiting is an object that waits for an extension that is a client of the API.
type Waiting struct {
	Object string    `json:"object"` // "pods default/web"
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"` // when it is waited for no longer
}

// WaitedFor is the state of an extension that something waits for, and that has done nothing wrong yet.
const WaitedFor State = "waited for"

// MostWaiting is the maximum number of waiting objects that the ledger lists for one extension.
const MostWaiting = 100

// Waits registers f, which returns the objects that wait for extensions. Snapshot calls it.
func (l *Ledger) Waits(f func() map[Ref][]Waiting) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waits = append(l.waits, f)
}

// Book records the work of an extension that is a client of the API, with its duration.
func (l *Ledger) Book(ref Ref, took time.Duration, err error) {
	l.account(ref).end(Policy{}, l.clock, took, false, err)
}

// waiting adds the waiting objects to entries; extensions that are not registered are appended.
func waiting(entries []Entry, asked []func() map[Ref][]Waiting) []Entry {
	for _, f := range asked {
		all := f()
		for i := range entries {
			if w, ok := all[entries[i].Ref]; ok {
				entries[i].wait(w)
				delete(all, entries[i].Ref)
			}
		}
		for ref, w := range all {
			e := Entry{Ref: ref, State: Unused}
			e.wait(w)
			entries = append(entries, e)
		}
	}
	return entries
}

func (e *Entry) wait(w []Waiting) {
	if len(w) == 0 {
		return
	}
	slices.SortFunc(w, func(a, b Waiting) int { return a.Since.Compare(b.Since) })
	e.Waits, e.Waiting = len(w), w[:min(len(w), MostWaiting)]
	if e.State == Unused || e.State == OK {
		e.State = WaitedFor
	}
}

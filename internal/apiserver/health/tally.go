// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package health

import "sync/atomic"

// Result is the result of a check in a root.
type Result struct {
	Check string
	Root  Root
	// Passed and Failed are counts; OK is the latest result.
	Passed, Failed int64
	OK             bool
}

// tally has a counter for each check and root.
type tally [][3]counter

type counter struct {
	passed, failed atomic.Int64
	last           atomic.Bool
}

func newTally(checks []Check) tally { return make(tally, len(checks)) }

func (t tally) count(check int, root Root, ok bool) {
	for i, r := range Roots() {
		if r != root {
			continue
		}
		c := &t[check][i]
		c.last.Store(ok)
		if ok {
			c.passed.Add(1)
		} else {
			c.failed.Add(1)
		}
	}
}

// Results returns the results of all checks that a root has run.
func (h *Handler) Results() []Result {
	var all []Result
	for i := range h.checks {
		for j, root := range Roots() {
			c := &h.tally[i][j]
			r := Result{Check: h.checks[i].Name, Root: root, Passed: c.passed.Load(), Failed: c.failed.Load(), OK: c.last.Load()}
			if r.Passed+r.Failed > 0 {
				all = append(all, r)
			}
		}
	}
	return all
}

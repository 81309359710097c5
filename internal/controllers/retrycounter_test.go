// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import "testing"

func TestRetries(t *testing.T) {
	r := &RetryCounter{}
	none := func() bool {
		select {
		case <-r.None():
			return true
		default:
			return false
		}
	}
	q, other := newRetrying(r), newRetrying(r)
	for _, step := range []struct {
		what string
		do   func()
		none bool
	}{
		{"nothing failed", func() {}, true},
		{"a key comes back soon", func() { q.soon("a") }, false},
		{"and again", func() { q.soon("a") }, false},
		{"another one", func() { q.soon("b") }, false},
		{"a key is back", func() { q.back("a") }, false},
		{"a key that did not fail", func() { q.back("c") }, false},
		{"a key of another queue", func() { other.soon(1) }, false},
		{"a queue ends", func() { q.end() }, false},
		{"an ended queue counts nothing", func() { q.soon("d"); q.end() }, false},
		{"the last key is back", func() { other.back(1) }, true},
	} {
		if step.do(); none() != step.none {
			t.Errorf("%s: no keys is %v, want %v", step.what, none(), step.none)
		}
	}
	<-(*RetryCounter)(nil).None()
	newRetrying(nil).soon("a")
}

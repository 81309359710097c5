// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

// line is the streams that wait for room in their connection, in the order in which they came. The connection's mutex guards it.
//
// Room that becomes free wakes the first stream alone. When that one has taken what it wants, or does not want it any more, it wakes the
// next if there is room left, and goes to the end of the line if it wants more. So a client that gives room byte by byte has one stream
// woken for each of its frames, however many wait, and no stream waits for ever beside others.
type line struct{ first, last *stream }

// place is a stream's in the line. The streams beside it are nil at the ends.
type place struct {
	in             bool
	before, behind *stream
}

// join puts a stream at the end, unless it has a place.
func (l *line) join(st *stream) {
	if st.place.in {
		return
	}
	st.place = place{in: true, before: l.last}
	if l.last == nil {
		l.first = st
	} else {
		l.last.place.behind = st
	}
	l.last = st
}

// leave takes a stream out, and reports whether it had a place.
func (l *line) leave(st *stream) bool {
	p := st.place
	if !p.in {
		return false
	}
	if p.before == nil {
		l.first = p.behind
	} else {
		p.before.place.behind = p.behind
	}
	if p.behind == nil {
		l.last = p.before
	} else {
		p.behind.place.before = p.before
	}
	st.place = place{}
	return true
}

// poke wakes the first stream.
func (l *line) poke() {
	if l.first != nil {
		l.first.poke()
	}
}

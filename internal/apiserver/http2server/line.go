// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package http2server

import "container/list"

// line is the streams that wait for room in their connection, in the order in which they came. The connection's mutex guards it.
//
// Room that becomes free wakes the first stream alone. When that one has taken what it wants, or does not want it any more, it wakes the
// next if there is room left, and goes to the end of the line if it wants more. So a client that gives room byte by byte has one stream
// woken for each of its frames, however many wait, and no stream waits for ever beside others.
type line struct{ streams list.List }

// join puts a stream at the end, unless it has a place.
func (l *line) join(st *stream) {
	if st.place == nil {
		st.place = l.streams.PushBack(st)
	}
}

// leave takes a stream out, and reports whether it had a place.
func (l *line) leave(st *stream) bool {
	if st.place == nil {
		return false
	}
	l.streams.Remove(st.place)
	st.place = nil
	return true
}

// poke wakes the first stream.
func (l *line) poke() {
	if first := l.streams.Front(); first != nil {
		first.Value.(*stream).poke()
	}
}

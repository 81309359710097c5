// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package mvcc

import "sync/atomic"

// stream is an append-only sequence with one writer and any number of readers that take no lock. Elements have positions that count from
// zero and never change; trim drops the oldest.
type stream[T any] struct {
	shift  uint         // chunks hold 1<<shift elements
	end    atomic.Int64 // position after the last element; elements below it are visible
	window atomic.Pointer[window[T]]

	borrowed bool // another stream writes the last chunk, beyond end; only the writer uses it
}

// window is the range of chunks. Windows share their slice of chunks as long as it only grows at the end.
type window[T any] struct {
	first  int64 // position of chunks[0][0]
	begin  int64 // oldest position that is kept; first <= begin
	chunks [][]T
}

func newStream[T any](shift uint) *stream[T] {
	s := &stream[T]{shift: shift}
	s.window.Store(&window[T]{})
	return s
}

// append adds v. Only the writer calls it.
func (s *stream[T]) append(v T) {
	if s.borrowed {
		s.own()
	}
	end, w := s.end.Load(), s.window.Load()
	n := int((end - w.first) >> s.shift)
	if n == len(w.chunks) {
		w = &window[T]{first: w.first, begin: w.begin, chunks: append(w.chunks, make([]T, 1<<s.shift))}
		s.window.Store(w)
	}
	w.chunks[n][(end-w.first)&(1<<s.shift-1)] = v
	s.end.Store(end + 1)
}

// at returns the element at a position below end, or false if it is trimmed.
func (s *stream[T]) at(position int64) (v T, ok bool) {
	w := s.window.Load()
	if position < w.begin {
		return v, false
	}
	offset := position - w.first
	return w.chunks[offset>>s.shift][offset&(1<<s.shift-1)], true
}

// begin returns the oldest position that is kept.
func (s *stream[T]) begin() int64 { return s.window.Load().begin }

// trim drops all elements before position, which is at most end. Only the writer calls it.
func (s *stream[T]) trim(position int64) {
	w := s.window.Load()
	if position <= w.begin {
		return
	}
	next := &window[T]{first: w.first, begin: position, chunks: w.chunks}
	if drop := (position - w.first) >> s.shift; drop > 0 {
		next.first += drop << s.shift
		next.chunks = append(make([][]T, 0, len(w.chunks)), w.chunks[drop:]...)
	}
	s.window.Store(next)
}

// search returns the first kept position for which after is true, or end; after must be false and then true.
func (s *stream[T]) search(end int64, after func(T) bool) int64 {
	low, high := s.begin(), end
	for low < high {
		middle := low + (high-low)/2
		if v, ok := s.at(middle); ok && after(v) {
			high = middle
		} else {
			low = middle + 1
		}
	}
	return low
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extension

import (
	"context"
	"slices"
	"sync"
	"time"
)

// maxSpans is how many spans a ledger keeps, of all objects together.
const maxSpans = 4096

// Span is one call to an extension on behalf of an object.
type Span struct {
	Ref
	Object string // NAMESPACE/NAME
	Method string // of the extension's protocol; empty: unknown
	Began  time.Time
	Took   time.Duration
	Error  string
}

// subject is the object that calls are made for.
type subject struct{ object, method string }

type subjectKey struct{}

// For returns a context whose calls the ledger keeps as spans of the object, NAMESPACE/NAME.
func For(ctx context.Context, namespace, name string) context.Context {
	return context.WithValue(ctx, subjectKey{}, subject{object: namespace + "/" + name})
}

// Calling names the method of the calls in the context, if they are made for an object.
func Calling(ctx context.Context, method string) context.Context {
	s, ok := ctx.Value(subjectKey{}).(subject)
	if !ok {
		return ctx
	}
	s.method = method
	return context.WithValue(ctx, subjectKey{}, s)
}

// spans are the newest calls for objects.
type spans struct {
	mu   sync.Mutex
	ring []Span
	next int // where the next one goes once the ring is full
}

// keep keeps a call that was made for an object.
func (s *spans) keep(ctx context.Context, ref Ref, began time.Time, took time.Duration, err error) {
	of, ok := ctx.Value(subjectKey{}).(subject)
	if !ok {
		return
	}
	span := Span{Ref: ref, Object: of.object, Method: of.method, Began: began, Took: took}
	if err != nil {
		span.Error = clip(err.Error())
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ring) < maxSpans {
		s.ring = append(s.ring, span)
		return
	}
	s.ring[s.next] = span
	s.next = (s.next + 1) % maxSpans
}

// Spans returns the newest calls for an object, in the order in which they began.
func (l *Ledger) Spans(namespace, name string) []Span {
	object := namespace + "/" + name
	var out []Span
	l.spans.mu.Lock()
	for _, s := range l.spans.ring {
		if s.Object == object {
			out = append(out, s)
		}
	}
	l.spans.mu.Unlock()
	slices.SortStableFunc(out, func(a, b Span) int { return a.Began.Compare(b.Began) })
	return out
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extension

import (
	"context"
	"errors"
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
	Code   string // of the protocol, if the extension has one: OK, DeadlineExceeded
	Error  string
	volume string // the PersistentVolume that it was made for, too
}

// Coder is an error with a code of the extension's protocol.
type Coder interface{ Code() string }

// subject is what calls are made for.
type subject struct {
	object, volume, method string
	coded                  bool
}

type subjectKey struct{}

// For returns a context whose calls the ledger keeps as spans of the object, NAMESPACE/NAME.
func For(ctx context.Context, namespace, name string) context.Context {
	return context.WithValue(ctx, subjectKey{}, subject{object: namespace + "/" + name})
}

// ForVolume returns a context whose calls the ledger keeps as spans of a PersistentVolume, and of the object that the context has.
func ForVolume(ctx context.Context, name string) context.Context {
	s, _ := ctx.Value(subjectKey{}).(subject)
	s.volume = name
	return context.WithValue(ctx, subjectKey{}, s)
}

// Coded says that the protocol of the calls in the context has codes, so that a call without an error has the code OK.
func Coded(ctx context.Context) context.Context {
	s, ok := ctx.Value(subjectKey{}).(subject)
	if !ok {
		return ctx
	}
	s.coded = true
	return context.WithValue(ctx, subjectKey{}, s)
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
	span := Span{Ref: ref, Object: of.object, Method: of.method, Began: began, Took: took, volume: of.volume}
	if of.coded {
		span.Code = "OK"
	}
	if err != nil {
		span.Error, span.Code = clip(err.Error()), ""
		if c := Coder(nil); errors.As(err, &c) {
			span.Code = c.Code()
		}
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
	return l.spans.of(func(s Span) bool { return s.Object == object })
}

// SpansOfVolume returns the newest calls for a PersistentVolume, in the order in which they began.
func (l *Ledger) SpansOfVolume(name string) []Span {
	return l.spans.of(func(s Span) bool { return s.volume == name && name != "" })
}

// of returns the calls that a function wants.
func (r *spans) of(wanted func(Span) bool) []Span {
	var out []Span
	r.mu.Lock()
	for _, s := range r.ring {
		if wanted(s) {
			out = append(out, s)
		}
	}
	r.mu.Unlock()
	slices.SortStableFunc(out, func(a, b Span) int { return a.Began.Compare(b.Began) })
	return out
}

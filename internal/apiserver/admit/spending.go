// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"context"
	"slices"
	"sync"
	"time"
)

// Spending is the time that one request has spent on calls out to extensions. Concurrent calls count once. Worked example:
// a mutating webhook takes 300 ms, then two concurrent validating ones take 100 ms and 500 ms: 800 ms are spent.
type Spending struct {
	mu    sync.Mutex
	spent time.Duration // total time with a call in flight, up to the last change of their number
	busy  int           // calls under way
	since time.Time
	took  []Spent
}

// Spent is the time of the calls of one extension.
type Spent struct {
	Name string
	Took time.Duration
}

type spendingKey struct{}

// WithSpending is a context of a request whose phases all spend from s.
func WithSpending(ctx context.Context, s *Spending) context.Context {
	return context.WithValue(ctx, spendingKey{}, s)
}

// SpendingOf returns the spending of ctx's request; a new one without a count.
func SpendingOf(ctx context.Context) *Spending {
	if s, ok := ctx.Value(spendingKey{}).(*Spending); ok {
		return s
	}
	return &Spending{}
}

// Begin begins a call, and returns the time spent before it.
func (s *Spending) Begin(now time.Time) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(now)
	s.busy++
	return s.spent
}

// End ends a call that began at begun.
func (s *Spending) End(name string, begun, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(now)
	s.busy--
	if i := slices.IndexFunc(s.took, func(t Spent) bool { return t.Name == name }); i >= 0 {
		s.took[i].Took += now.Sub(begun)
		return
	}
	s.took = append(s.took, Spent{name, now.Sub(begun)})
}

func (s *Spending) settle(now time.Time) {
	if s.busy > 0 {
		s.spent += now.Sub(s.since)
	}
	s.since = now
}

// Took returns the time of each extension, in the order in which their calls first ended.
func (s *Spending) Took() []Spent {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.took)
}

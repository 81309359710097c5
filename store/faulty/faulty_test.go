// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package faulty_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/faulty"
	"github.com/mortise-dev/mortise/store/memory"
	"github.com/mortise-dev/mortise/store/storetest"
)

var _ = storetest.Seed()

// TestEngine shows that without faults the decorator changes nothing.
func TestEngine(t *testing.T) {
	storetest.Run(t, func(_ testing.TB, clock alarm.Clock) storetest.Open {
		return func() (store.Engine, error) {
			return faulty.New(memory.Open(memory.Options{Clock: clock}), func(faulty.Call) faulty.Fault { return faulty.Fault{} }), nil
		}
	}, storetest.Features{Clock: true})
}

var errLost = errors.New("connection lost")

// TestFaults fails each operation before and after the engine has done it.
func TestFaults(t *testing.T) {
	ctx := context.Background()
	for _, op := range []faulty.Op{faulty.Commit, faulty.Get, faulty.Range, faulty.Watch, faulty.Next, faulty.Compact} {
		for _, after := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/after=%v", op, after), func(t *testing.T) {
				on := false
				s := store.New(faulty.New(memory.Open(memory.Options{}), func(c faulty.Call) faulty.Fault {
					switch {
					case !on || c.Op != op:
						return faulty.Fault{}
					case after:
						return faulty.Fault{After: errLost}
					default:
						return faulty.Fault{Before: errLost}
					}
				}))
				defer func() { _ = s.Close() }()
				if _, err := s.Create(ctx, "/a", []byte("1"), 0); err != nil {
					t.Fatal(err)
				}
				w, err := s.Watch(ctx, "/", 1)
				if err != nil {
					t.Fatal(err)
				}
				defer w.Close()
				on = true
				for _, call := range []struct {
					op faulty.Op
					do func() error
				}{
					{faulty.Commit, func() error { _, err := s.Create(ctx, "/b", []byte("2"), 0); return err }},
					{faulty.Get, func() error { _, _, err := s.Get(ctx, "/a"); return err }},
					{faulty.Range, func() error { _, err := s.List(ctx, "/"); return err }},
					{faulty.Watch, func() error { _, err := s.Watch(ctx, "/", 2); return err }},
					{faulty.Next, func() error { _, err := w.Next(ctx); return err }},
					{faulty.Compact, func() error { return s.Compact(ctx, 2) }},
				} {
					if err := call.do(); errors.Is(err, errLost) != (call.op == op) || err != nil && call.op != op {
						t.Errorf("%s: %v", call.op, err)
					}
				}
				on = false
				r, _, err := s.Get(ctx, "/b")
				if err != nil || (r == nil) != (op == faulty.Commit && !after) {
					t.Errorf("the second key is %v, %v", r, err)
				}
				if compacted := s.Compacted(); compacted != 2 && (op != faulty.Compact || after) {
					t.Errorf("compacted to %d", compacted)
				}
			})
		}
	}
}

// TestHang delays a call until it is released, or given up.
func TestHang(t *testing.T) {
	release := make(chan struct{})
	s := store.New(faulty.New(memory.Open(memory.Options{}), func(faulty.Call) faulty.Fault { return faulty.Fault{Hang: release} }))
	defer func() { _ = s.Close() }()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, _, err := s.Get(ctx, "/a"); !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
	close(release)
	if _, _, err := s.Get(context.Background(), "/a"); err != nil {
		t.Errorf("released: %v", err)
	}
}

// TestRandomly repeats itself with its seed.
func TestRandomly(t *testing.T) {
	record := func(seed uint64) (s string) {
		plan := faulty.Randomly(seed, 0.3, errLost)
		for i := range 100 {
			f := plan(faulty.Call{Op: faulty.Get, Count: i})
			s += fmt.Sprint(f.Before, f.After)
		}
		return s
	}
	if one, again := record(1), record(1); one != again || one == record(2) {
		t.Error("the seed does not decide")
	}
}

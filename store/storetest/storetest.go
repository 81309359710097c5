// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package storetest tests that an engine keeps the promises of [store.Engine]. It has one entry point:
//
//	func TestEngine(t *testing.T) {
//		storetest.Run(t, func(tb testing.TB, clock alarm.Clock) storetest.Open {
//			dir := tb.TempDir()
//			return func() (store.Engine, error) { return local.Open(dir, local.Options{Clock: clock}) }
//		}, storetest.Features{Durable: true, Clock: true})
//	}
//
// There is a test for each named promise, for the basic operations, for expiry, and a model checker that performs random operations and
// compares each result with that of a reference model. An engine declares its abilities as features; Run skips the tests of missing
// features by name. [Bench] runs the benchmarks.
//
// All random tests are seeded; a failure prints how to run it again.
//
// # Stability
//
// The suite tests the promises that package store names. It gets new tests of them in any release. What this package exports only grows,
// and a committed list of it is compared in a test.
package storetest

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
)

// Open opens an engine. A durable engine can be opened again after Close, with its content.
type Open func() (store.Engine, error)

// Factory prepares an empty place for an engine, and returns how to open it there.
type Factory func(tb testing.TB, clock alarm.Clock) Open

// Features are an engine's abilities beyond those that all engines have.
type Features struct {
	Durable bool // committed data survive Close and Open
	Clock   bool // it uses the clock that the factory receives
	Checks  int  // random sequences that the model checker tries; default: -rapid.checks
}

// Run runs all tests.
func Run(t *testing.T, factory Factory, features Features) {
	for _, test := range []struct {
		name  string
		needs string // why the test is skipped, "" if it is not
		run   func(*testing.T, *fixture)
	}{
		{"Get", "", testGet},
		{"Create", "", testCreate},
		{"Update", "", testUpdate},
		{"Delete", "", testDelete},
		{"Transaction", "", testTransaction},
		{"Invalid", "", testInvalid},
		{"Range", "", testRange},
		{"RangePast", "", testRangePast},
		{"Close", "", testClose},
		{"Context", "", testContext},
		{"Linearizable", "", testLinearizable},
		{"Durable", missing(features.Durable, "durable"), testDurable},
		{"Ordered", "", testOrdered},
		{"Unique", "", testUnique},
		{"Atomic", "", testAtomic},
		{"Reliable", "", testReliable},
		{"ReliableWakes", "", testWakes},
		{"Resumable", "", testResumable},
		{"ResumableAfterRestart", missing(features.Durable, "durable"), testResumableAfterRestart},
		{"Bookmarkable", "", testBookmarkable},
		{"Compactable", "", testCompactable},
		{"Expiry", missing(features.Clock, "clock"), testExpiry},
		{"ExpiryAfterRestart", missing(features.Clock && features.Durable, "clock and durable"), testExpiryAfterRestart},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.needs != "" {
				t.Skip(test.needs)
			}
			test.run(t, newFixture(t, factory, features))
		})
	}
	t.Run("Model", func(t *testing.T) { testModel(t, factory, features) })
}

func missing(has bool, feature string) string {
	if has {
		return ""
	}
	return "the engine does not declare the feature: " + feature
}

// fixture is one test's engine.
type fixture struct {
	*store.Store
	ctx    context.Context
	clock  *Clock
	open   Open
	random *rand.Rand
}

// newFixture opens an engine. The test's cleanup closes it, and fails if it has left a goroutine behind.
func newFixture(t *testing.T, factory Factory, features Features) *fixture {
	t.Helper()
	before := goleak.IgnoreCurrent()
	clock := NewClock()
	f := &fixture{ctx: context.Background(), clock: clock, open: factory(t, clock)}
	var seed uint64
	f.random, seed = seeded()
	f.reopen(t)
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		goleak.VerifyNone(t, before)
		if t.Failed() {
			t.Logf("run again with -storetest.seed=%d", seed)
		}
	})
	return f
}

// reopen closes the engine, if it is open, and opens it again.
func (f *fixture) reopen(t *testing.T) {
	t.Helper()
	if f.Store != nil {
		if err := f.Close(); err != nil {
			t.Fatalf("close: %v", err)
		}
	}
	engine, err := f.open()
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	f.Store = store.New(engine)
}

// seeded returns a source of random numbers, and its seed, which -storetest.seed sets.
func seeded() (*rand.Rand, uint64) {
	seed := rand.Uint64() >> 1
	if f := flag.Lookup(seedFlag); f != nil {
		if given, ok := f.Value.(flag.Getter).Get().(uint64); ok && given != 0 {
			seed = given
		}
	}
	return rand.New(rand.NewPCG(seed, 2)), seed
}

const seedFlag = "storetest.seed"

// Seed defines the flag -storetest.seed. Test packages call it in a var declaration, to be able to repeat a failure.
func Seed() *uint64 { return flag.Uint64(seedFlag, 0, "seed of random tests; 0: a random one") }

// must returns v, and ends the test on an error.
func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (f *fixture) create(t *testing.T, key, value string) *store.Record {
	t.Helper()
	return must[*store.Record](t)(f.Create(f.ctx, key, []byte(value), 0))
}

func (f *fixture) update(t *testing.T, r *store.Record, value string) *store.Record {
	t.Helper()
	return must[*store.Record](t)(f.Update(f.ctx, r.Key, r.Revision, []byte(value), 0))
}

func (f *fixture) watch(t *testing.T, prefix string, after int64) store.Watcher {
	t.Helper()
	w := must[store.Watcher](t)(f.Watch(f.ctx, prefix, after))
	t.Cleanup(w.Close)
	return w
}

// patience is how long a test waits for an expected event; it ends a test that would hang.
const patience = 20 * time.Second

// next returns the next batch with events.
func next(t testing.TB, w store.Watcher) store.Batch {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		b, err := w.Next(ctx)
		if err != nil {
			t.Fatalf("next: %v", err)
		}
		if len(b.Events) > 0 {
			return b
		}
	}
}

// failer can end a test: a testing.TB or a rapid.T.
type failer interface {
	Helper()
	Fatalf(format string, args ...any)
}

func wantError(t failer, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Fatalf("error %v, want %v", err, want)
	}
}

func wantConflict(t testing.TB, err error, key string, current *store.Record) {
	t.Helper()
	var conflict *store.ConflictError
	if !errors.As(err, &conflict) {
		t.Fatalf("error %v, want a conflict", err)
	}
	if conflict.Key != key || show(conflict.Current) != show(current) {
		t.Fatalf("conflict of %q with %s, want %q with %s", conflict.Key, show(conflict.Current), key, show(current))
	}
}

// show formats a record, for comparison.
func show(r *store.Record) string {
	if r == nil {
		return "none"
	}
	return fmt.Sprintf("%s=%q@%d/%d", r.Key, r.Value, r.Revision, r.Created)
}

func showAll(records []*store.Record) (s string) {
	for _, r := range records {
		s += show(r) + "\n"
	}
	return s
}

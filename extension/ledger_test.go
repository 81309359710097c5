// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extension

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestLedgerCountsAndNames(t *testing.T) {
	c := clocktesting.NewFakeClock(time.Unix(1000, 0))
	l := NewLedger(c)
	ref := Ref{ContainerRuntime, "containerd"}
	if err := l.Call(t.Context(), ref, Policy{}, func(context.Context) error { c.Step(time.Second); return nil }); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("socket is gone")
	err := l.Call(t.Context(), ref, Policy{}, func(context.Context) error { c.Step(3 * time.Second); return broken })
	if !errors.Is(err, broken) || err.Error() != `call cri "containerd": socket is gone` {
		t.Errorf("got error %v", err)
	}
	want := []Entry{{Ref: ref, Calls: 2, Failures: 1, Total: 4 * time.Second, Longest: 3 * time.Second, LastError: "socket is gone", LastFailure: time.Unix(1004, 0)}}
	if d := cmp.Diff(want, l.Snapshot()); d != "" {
		t.Error(d)
	}
}

func TestBreakerOpensTriesAndCloses(t *testing.T) {
	c := clocktesting.NewFakeClock(time.Unix(1000, 0))
	l := NewLedger(c)
	ref, p := Ref{ContainerRuntime, "x"}, Policy{Failures: 2, Pause: time.Minute}
	called := 0
	call := func(err error) error {
		return l.Call(t.Context(), ref, p, func(context.Context) error { called++; return err })
	}
	down := errors.New("down")
	call(down)
	call(down)
	if err := call(nil); !errors.Is(err, ErrOpen) || called != 2 {
		t.Fatalf("after two failures: error %v, called %d times, want ErrOpen and 2", err, called)
	}
	c.Step(time.Minute)
	if err := call(down); !errors.Is(err, down) || called != 3 {
		t.Fatalf("after the pause: error %v, called %d times, want one trial", err, called)
	}
	if err := call(nil); !errors.Is(err, ErrOpen) {
		t.Fatalf("after a failed trial: error %v, want ErrOpen", err)
	}
	c.Step(time.Minute)
	if err := call(nil); err != nil {
		t.Fatal(err)
	}
	if err := call(nil); err != nil || l.Snapshot()[0].Open {
		t.Fatalf("after a good trial: error %v, entry %+v", err, l.Snapshot()[0])
	}
}

func TestLedgerGivesADeadline(t *testing.T) {
	l := NewLedger(clocktesting.NewFakeClock(time.Unix(1000, 0)))
	err := l.Call(t.Context(), Ref{ContainerRuntime, "slow"}, Policy{Timeout: time.Nanosecond}, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline", err)
	}
}

func TestPanicIsBooked(t *testing.T) {
	l := NewLedger(clocktesting.NewFakeClock(time.Unix(1000, 0)))
	func() {
		defer func() { _ = recover() }()
		l.Call(t.Context(), Ref{ContainerRuntime, "p"}, Policy{}, func(context.Context) error { panic("x") })
	}()
	if got := l.Snapshot(); len(got) != 1 || got[0].Failures != 1 || got[0].LastError != "panicked" {
		t.Errorf("got %+v", got)
	}
}

func TestCatalogueIsComplete(t *testing.T) {
	for _, d := range Points() {
		if d.Point == "" || d.Title == "" || d.Contract == "" || d.Configured == "" {
			t.Errorf("row %+v has an empty cell", d)
		}
	}
}

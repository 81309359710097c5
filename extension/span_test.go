// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extension

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
)

// A call for an object is one of its spans; others are not.
func TestSpans(t *testing.T) {
	c := clocktesting.NewFakeClock(time.Unix(1000, 0))
	l := NewLedger(c)
	ref := Ref{Point: DevicePlugin, Name: "example.com/dev"}
	call := func(ctx context.Context, err error) {
		_ = l.Call(ctx, ref, Policy{}, func(context.Context) error { c.Step(time.Second); return err })
	}
	ctx := For(t.Context(), "ns", "a")
	call(Calling(ctx, "Allocate"), nil)
	call(ctx, errors.New("broken"))
	call(Calling(t.Context(), "Allocate"), nil)
	call(For(t.Context(), "ns", "b"), nil)
	got := l.Spans("ns", "a")
	want := []Span{
		{Ref: ref, Object: "ns/a", Method: "Allocate", Began: time.Unix(1000, 0), Took: time.Second},
		{Ref: ref, Object: "ns/a", Began: time.Unix(1001, 0), Took: time.Second, Error: "broken"},
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("spans %v, want %v", got, want)
	}
	for range maxSpans {
		call(For(t.Context(), "ns", "b"), nil)
	}
	got, others := l.Spans("ns", "a"), l.Spans("ns", "b")
	if len(got) != 0 || len(others) != maxSpans || !others[0].Began.Before(others[1].Began) {
		t.Errorf("kept %d old spans, %d new ones", len(got), len(others))
	}
}

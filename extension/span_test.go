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

// coded is an error with a code.
type coded struct{ error }

func (coded) Code() string { return "Aborted" }

// Calls for a volume are the pod's and the volume's, with the codes of their protocol.
func TestSpansOfVolume(t *testing.T) {
	l := NewLedger(clocktesting.NewFakeClock(time.Unix(1000, 0)))
	ref := Ref{Point: StorageDriver, Name: "d.example.com"}
	call := func(ctx context.Context, err error) {
		_ = l.Call(Coded(Calling(ctx, "NodeStageVolume")), ref, Policy{}, func(context.Context) error { return err })
	}
	ctx := ForVolume(For(t.Context(), "ns", "a"), "pv")
	call(ctx, fmt.Errorf("stage: %w", coded{errors.New("busy")}))
	call(ctx, nil)
	call(ForVolume(t.Context(), "pv"), errors.New("no code"))
	call(t.Context(), nil)
	var got []string
	for _, s := range l.SpansOfVolume("pv") {
		got = append(got, s.Object+" "+s.Method+" "+s.Code+" "+s.Error)
	}
	want := []string{"ns/a NodeStageVolume Aborted stage: busy", "ns/a NodeStageVolume OK ", " NodeStageVolume  no code"}
	if fmt.Sprintf("%q", got) != fmt.Sprintf("%q", want) {
		t.Errorf("spans %q, want %q", got, want)
	}
	if pod := l.Spans("ns", "a"); len(pod) != 2 || len(l.SpansOfVolume("")) != 0 {
		t.Errorf("spans of the pod: %v", pod)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scalinglog_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/controllers/scalinglog"
)

func key(name string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: name} }

func decided(time int, outcome, message string) *trace.Scaling {
	return &trace.Scaling{Time: fmt.Sprint(time), Outcome: outcome, Message: message, Target: "Deployment/web"}
}

func kept(a *trace.Autoscaling) string {
	if a == nil {
		return "nothing"
	}
	out := a.UID + ":"
	for _, d := range a.Decisions {
		out += fmt.Sprintf(" %s-%s %s %s x%d,", d.Since, d.Time, d.Outcome, d.Message, d.Evaluations)
	}
	return out
}

func TestResultsOfOneAutoscaler(t *testing.T) {
	l := scalinglog.New(scalinglog.Options{})
	add := func(d *trace.Scaling) { l.Add(key("a"), "1", d) }
	add(decided(1, trace.OutcomeKept, "a"))
	add(decided(2, trace.OutcomeKept, "a"))
	add(decided(3, trace.OutcomeScaledUp, "b"))
	add(decided(4, trace.OutcomeScaledUp, "b"))
	if got, want := kept(l.Autoscaling("ns", "a")), "1: 4-4 scaled up b x1, 3-3 scaled up b x1, 1-2 kept a x2,"; got != want {
		t.Errorf("kept %s, want %s", got, want)
	}
	for i := range 20 {
		add(decided(5+i, trace.OutcomeFailed, fmt.Sprint(i)))
	}
	got := kept(l.Autoscaling("ns", "a"))
	if !strings.Contains(got, " 4-4 scaled up b x1,") || strings.Contains(got, "3-3") || strings.Count(got, ",") != scalinglog.MostDecisions {
		t.Errorf("kept %s, want the last rescale and the newest failures", got)
	}
	l.Add(key("a"), "2", decided(30, trace.OutcomeKept, "c"))
	if got := kept(l.Autoscaling("ns", "a")); got != "2: 30-30 kept c x1," {
		t.Errorf("of another autoscaler of the same name %s is kept", got)
	}
	l.Remove(key("a"))
	l.Remove(key("a"))
	if got := kept(l.Autoscaling("ns", "a")); got != "nothing" {
		t.Errorf("of a removed autoscaler %s is kept", got)
	}
}

func TestBounds(t *testing.T) {
	const bound = 64 << 10
	l := scalinglog.New(scalinglog.Options{Bytes: bound})
	text := strings.Repeat("x", 10_000)
	for i := range 50 {
		for j := range 10 {
			d := decided(j, trace.OutcomeFailed, fmt.Sprint(j, text))
			for range 30 {
				d.Metrics = append(d.Metrics, trace.ScalingMetric{Name: text, Path: text, Value: text, Target: text, Error: text})
			}
			l.Add(key(fmt.Sprint(i)), "1", d)
		}
	}
	a := l.Autoscaling("ns", "49")
	if a == nil || len(a.Decisions) != 1 || len(a.Decisions[0].Metrics) != scalinglog.MostMetrics || a.Decisions[0].MoreMetrics != 20 {
		t.Fatalf("of the newest: %.200s", kept(a))
	}
	if a.Kept.Bytes > bound || a.Kept.Autoscalers < 1 || a.Kept.Bound != bound || l.Autoscaling("ns", "0") != nil {
		t.Errorf("kept %+v", a.Kept)
	}
	for i := range 50 {
		l.Remove(key(fmt.Sprint(i)))
	}
	l.Add(key("a"), "1", decided(1, trace.OutcomeKept, ""))
	if got := l.Autoscaling("ns", "a").Kept; got.Bytes > 1000 || got.Autoscalers != 1 {
		t.Errorf("after all were removed: %+v", got)
	}
}

func TestNobodyKeeps(t *testing.T) {
	var l *scalinglog.Log
	l.Add(key("a"), "1", decided(1, trace.OutcomeKept, ""))
	l.Remove(key("a"))
	if a := l.Autoscaling("ns", "a"); a != nil {
		t.Errorf("%+v is kept", a)
	}
}

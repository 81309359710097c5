// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package decisionlog_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/scheduler/core"
	"github.com/mortise-dev/mortise/internal/scheduler/decisionlog"
)

func decision(name, uid string, attempt int) *decisionlog.Decision {
	return &decisionlog.Decision{
		Namespace: "ns", Name: name, UID: types.UID(uid), Time: time.Unix(1000, 0), Attempt: attempt, Outcome: trace.OutcomeUnschedulable,
	}
}

func attempts(s *trace.Scheduling) string {
	if s == nil {
		return "nothing"
	}
	out := s.UID + ":"
	for _, d := range s.Decisions {
		out += fmt.Sprint(" ", d.Attempt)
	}
	return out
}

func TestKeptOfOnePod(t *testing.T) {
	k := decisionlog.New(decisionlog.Options{})
	for i := range 6 {
		k.Add(decision("a", "1", i))
	}
	if got := attempts(k.Scheduling("ns", "a")); got != "1: 5 4 3 2" {
		t.Errorf("kept %s, want the last four, the newest first", got)
	}
	last := decision("a", "2", 0)
	k.Add(last)
	if got := attempts(k.Scheduling("ns", "a")); got != "2: 0" {
		t.Errorf("of another pod of the same name %s is kept", got)
	}
	k.Change(last, func(d *decisionlog.Decision) { d.Outcome, d.Message = trace.OutcomeBound, "there" })
	if d := k.Scheduling("ns", "a").Decisions[0]; d.Outcome != trace.OutcomeBound || d.Message != "there" {
		t.Errorf("the change is not told: %+v", d)
	}
	if got := attempts(k.Scheduling("other", "a")); got != "nothing" {
		t.Errorf("of a pod that nobody has decided about, %s", got)
	}
}

func TestBounds(t *testing.T) {
	k := decisionlog.New(decisionlog.Options{Pods: 3})
	var first *decisionlog.Decision
	for i, name := range []string{"a", "b", "c", "a", "d"} {
		d := decision(name, name, i)
		if i == 1 {
			first = d
		}
		k.Add(d)
	}
	for name, want := range map[string]string{"a": "a: 3 0", "b": "nothing", "c": "c: 2", "d": "d: 4"} {
		if got := attempts(k.Scheduling("ns", name)); got != want {
			t.Errorf("of %s %s is kept, want %s", name, got, want)
		}
	}
	bytes := k.Scheduling("ns", "a").Kept.Bytes
	k.Change(first, func(d *decisionlog.Decision) { d.Message = strings.Repeat("x", 1000) })
	if got := k.Scheduling("ns", "a").Kept; got.Bytes != bytes || got.Pods != 3 {
		t.Errorf("%+v is said to be kept after a change of what is not, before it were %d bytes", got, bytes)
	}

	k = decisionlog.New(decisionlog.Options{Bytes: 10_000})
	for i := range 1000 {
		d := decision(fmt.Sprint("pod-", i), "u", i)
		d.Message = strings.Repeat("m", 900)
		k.Add(d)
	}
	kept := k.Scheduling("ns", "pod-999").Kept
	if kept.Bytes > 10_000 || kept.Pods < 3 || kept.Bound != 10_000 {
		t.Errorf("kept %+v of at most 10,000 bytes", kept)
	}
	big := decision("pod-999", "u", 1000)
	k.Add(big)
	k.Change(big, func(d *decisionlog.Decision) { d.Message = strings.Repeat("m", 100_000) })
	if d := k.Scheduling("ns", "pod-999").Decisions[0]; len(d.Message) > 4096 {
		t.Errorf("a message of %d bytes is kept", len(d.Message))
	}
}

// there is a scheduler that has one pod.
type there struct{ name, uid string }

func (x there) Place(_, name string) (types.UID, *trace.Place) {
	if name != x.name {
		return "", nil
	}
	return types.UID(x.uid), &trace.Place{Where: trace.PlaceActive}
}

func TestWhereThePodIs(t *testing.T) {
	k := decisionlog.New(decisionlog.Options{})
	k.Add(decision("a", "1", 1))
	if s := k.Scheduling("ns", "a"); s.Place != nil || s.Note == "" {
		t.Errorf("without a scheduler: %+v", s)
	}
	detach := k.Attach(there{"a", "1"})
	if s := k.Scheduling("ns", "a"); s.Place == nil || s.Place.Where != trace.PlaceActive || s.Note != "" {
		t.Errorf("with the pod in the scheduler: %+v", s)
	}
	detach()
	defer k.Attach(there{"a", "2"})()
	detach() // long since: does no harm
	if s := k.Scheduling("ns", "a"); s.UID != "2" || !strings.Contains(s.Note, "earlier pod of the same name, 1") {
		t.Errorf("with another pod in the scheduler: %+v", s)
	}
	defer k.Attach(there{"b", "3"})()
	if s := k.Scheduling("ns", "a"); s.Place != nil || !strings.Contains(s.Note, "does not exist any more") {
		t.Errorf("with the pod gone: %+v", s)
	}
	if s := k.Scheduling("ns", "b"); s == nil || s.Place == nil || len(s.Decisions) != 0 {
		t.Errorf("of a pod that was not tried yet: %+v", s)
	}
}

func TestScoresAreTold(t *testing.T) {
	k := decisionlog.New(decisionlog.Options{})
	d := decision("a", "1", 1)
	d.Account = core.Account{Columns: []string{"A", "B"},
		Scores: []core.Scores{{Node: "n", Total: 25, Raw: []int64{5, 1}, Weighted: []int64{10, 2}}}}
	k.Add(d)
	want := []trace.NodeScore{{Node: "n", Total: 25, Plugins: []trace.PluginScore{
		{Plugin: "A", Raw: 5, Weighted: 10}, {Plugin: "B", Raw: 1, Weighted: 2}, {Plugin: decisionlog.Extenders, Raw: 13, Weighted: 13},
	}}}
	if diff := cmp.Diff(want, k.Scheduling("ns", "a").Decisions[0].Scores); diff != "" {
		t.Errorf("scores (-want +got):\n%s", diff)
	}
}

func TestNobodyKeeps(t *testing.T) {
	var k *decisionlog.Log
	d := decision("a", "1", 1)
	k.Add(d)
	k.Change(d, func(*decisionlog.Decision) { t.Error("a decision is changed that nobody keeps") })
	k.Attach(there{})()
	if s := k.Scheduling("ns", "a"); s != nil {
		t.Errorf("%+v is kept", s)
	}
}

func BenchmarkAdd(b *testing.B) {
	k := decisionlog.New(decisionlog.Options{})
	names := make([]string, 10_000)
	for i := range names {
		names[i] = fmt.Sprint("pod-", i)
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		k.Add(decision(names[i%len(names)], "1", i))
	}
}

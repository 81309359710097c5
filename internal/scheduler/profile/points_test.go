// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// named is a plug-in's name.
type named string

func (n named) Name() string { return string(n) }

// sorter, filter, scorer … are plug-ins of one kind each, as small as can be.
type (
	sorter struct{ named }
	filter struct {
		named
		log *[]string
	}
	scorer struct {
		named
		score int64
	}
	both struct { // filters and scores
		filter
		scorer scorer
	}
	binder struct {
		named
		status *fwk.Status
		log    *[]string
	}
)

func (sorter) Less(a, b fwk.QueuedEntityInfo) bool { return a.GetTimestamp().Before(b.GetTimestamp()) }

func (f filter) Filter(context.Context, fwk.CycleState, *corev1.Pod, fwk.NodeInfo) *fwk.Status {
	*f.log = append(*f.log, f.Name())
	return nil
}

func (s scorer) Score(context.Context, fwk.CycleState, *corev1.Pod, fwk.NodeInfo) (int64, *fwk.Status) {
	return s.score, nil
}
func (scorer) ScoreExtensions() fwk.ScoreExtensions { return nil }

func (b both) Score(ctx context.Context, st fwk.CycleState, pod *corev1.Pod, n fwk.NodeInfo) (int64, *fwk.Status) {
	return b.scorer.Score(ctx, st, pod, n)
}
func (both) ScoreExtensions() fwk.ScoreExtensions { return nil }

func (b binder) Bind(context.Context, fwk.CycleState, *corev1.Pod, string) *fwk.Status {
	if b.log != nil {
		*b.log = append(*b.log, b.Name())
	}
	return b.status
}

// registry makes a registry of the plug-ins.
func registry(plugins ...fwk.Plugin) (r profile.Registry) {
	for _, p := range plugins {
		r = append(r, profile.Registration{Name: p.Name(),
			New: func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return p, nil }})
	}
	return r
}

// set reads "A B=3 -C": A and B enabled, B with a weight of 3, C disabled.
func set(text string) (out configv1.PluginSet) {
	for _, word := range strings.Fields(text) {
		if name, off := strings.CutPrefix(word, "-"); off {
			out.Disabled = append(out.Disabled, configv1.Plugin{Name: name})
			continue
		}
		name, weight, ok := strings.Cut(word, "=")
		p := configv1.Plugin{Name: name}
		if ok {
			var n int32
			if _, err := fmt.Sscan(weight, &n); err != nil {
				panic(err)
			}
			p.Weight = ptr.To(n)
		}
		out.Enabled = append(out.Enabled, p)
	}
	return out
}

func TestPointsArePutInOrder(t *testing.T) {
	for _, c := range []struct {
		name                 string
		multi, filter, score string
		filters              string // in the order in which they are asked
		total                int64  // of a node's score: F1 scores 1, F2 10
		err                  string
	}{
		{name: "for all points", multi: "Q B F1 F2", filters: "F1 F2", total: 11},
		{name: "weights", multi: "Q B F1=5 F2", filters: "F1 F2", total: 15},
		{name: "a point's own weight counts", multi: "Q B F1=5 F2", score: "F1=7", filters: "F1 F2", total: 17},
		{name: "a weight of 0 is 1", multi: "Q B F1=0", filters: "F1", total: 1},
		{name: "disabled at a point", multi: "Q B F1 F2", filter: "-F1", filters: "F2", total: 11},
		{name: "all disabled at a point", multi: "Q B F1 F2", filter: "-*", total: 11},
		{name: "all disabled but one", multi: "Q B F1 F2", filter: "F2 -*", filters: "F2", total: 11},
		{name: "named at a point comes first", multi: "Q B F1 F2", filter: "F2", filters: "F2 F1", total: 11},
		{name: "named at a point alone comes last", multi: "Q B F1", filter: "F2", filters: "F1 F2", total: 1},
		{name: "in both ways, and alone", multi: "Q B F1 F2", filter: "F3 F2", filters: "F2 F1 F3", total: 11},
		{name: "unknown", multi: "Q B X", err: `PreFilterPlugin "X" does not exist`},
		{name: "unknown at a point", multi: "Q B", filter: "X", err: `FilterPlugin "X" does not exist`},
		{name: "of another kind", multi: "Q B", score: "F3", err: `plugin "F3" does not extend ScorePlugin plugin`},
		{name: "twice at a point", multi: "Q B", filter: "F1 F1", err: `plugin "F1" already registered as "FilterPlugin"`},
		{name: "twice for all points", multi: "Q B F1 F1", err: `plugin "F1" already registered as "FilterPlugin"`},
		{name: "without a sorter", multi: "B", err: `only one queue sort plugin required for profile with scheduler name "s", but got 0`},
		{name: "two sorters", multi: "Q Q2 B", err: `only one queue sort plugin required for profile with scheduler name "s", but got 2`},
		{name: "without a binder", multi: "Q", err: `at least one bind plugin is needed for profile with scheduler name "s"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked []string
			r := registry(sorter{"Q"}, sorter{"Q2"}, binder{named: "B"},
				both{filter{"F1", &asked}, scorer{"F1", 1}}, both{filter{"F2", &asked}, scorer{"F2", 10}}, filter{"F3", &asked})
			p, err := profile.Configure(t.Context(), profile.Settings{Name: "s", Plugins: &configv1.Plugins{
				MultiPoint: set(c.multi), Filter: set(c.filter), Score: set(c.score),
			}}, r, profile.Clients{})
			if c.err != "" {
				if err == nil || err.Error() != c.err {
					t.Fatalf("error is %v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			node, pod := oneNode(), &corev1.Pod{}
			if st := p.RunFilterPlugins(t.Context(), profile.NewCycleState(), pod, node); !st.IsSuccess() {
				t.Fatal(st.Message())
			}
			if d := cmp.Diff(strings.Fields(c.filters), append([]string{}, asked...)); d != "" {
				t.Errorf("filters (-want +got):\n%s", d)
			}
			scores, st := p.RunScorePlugins(t.Context(), profile.NewCycleState(), pod, []fwk.NodeInfo{node})
			if !st.IsSuccess() || scores[0].TotalScore != c.total {
				t.Errorf("score %+v (%s), want %d", scores, st.Message(), c.total)
			}
		})
	}
}

func TestPluginsAreMadeOnceWithTheirArguments(t *testing.T) {
	made := map[string]int{}
	var closed []string
	args := map[string]runtime.Object{"C": &runtime.Unknown{Raw: []byte(`{"a":1}`)}}
	r := append(registry(sorter{"Q"}, binder{named: "B"}),
		profile.Registration{Name: "C", New: func(_ context.Context, a runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
			made["C"]++
			if a != args["C"] || h.ProfileName() != "s" {
				t.Errorf("made with %v for %s", a, h.ProfileName())
			}
			return closer{filter{"C", new([]string)}, &closed}, nil
		}}, profile.Registration{Name: "D", New: func(_ context.Context, a runtime.Object, _ fwk.Handle) (fwk.Plugin, error) {
			made["D"]++
			if a != nil {
				t.Errorf("D is made with %v", a)
			}
			return filter{"D", new([]string)}, nil
		}}, profile.Registration{Name: "E", New: func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
			t.Error("E is made, which nobody names")
			return filter{"E", nil}, nil
		}})
	p, err := profile.Configure(t.Context(), profile.Settings{Name: "s", Args: args, Plugins: &configv1.Plugins{
		MultiPoint: set("Q B C D"), Filter: set("C"),
	}}, r, profile.Clients{})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[string]int{"C": 1, "D": 1}, made); d != "" {
		t.Errorf("made (-want +got):\n%s", d)
	}
	if err := p.Close(); err != nil || len(closed) != 1 {
		t.Errorf("closed %v: %v", closed, err)
	}
}

type closer struct {
	filter
	closed *[]string
}

func (c closer) Close() error {
	*c.closed = append(*c.closed, c.Name())
	return nil
}

func TestAFactoryThatFailsIsNamed(t *testing.T) {
	r := append(registry(sorter{"Q"}, binder{named: "B"}),
		profile.Registration{Name: "C", New: func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
			return nil, context.DeadlineExceeded
		}})
	_, err := profile.Configure(t.Context(), profile.Settings{Name: "s", Plugins: &configv1.Plugins{MultiPoint: set("Q B C")}}, r,
		profile.Clients{})
	if err == nil || err.Error() != `initializing plugin "C": context deadline exceeded` {
		t.Errorf("error is %v", err)
	}
}

// registering says what may help pods that it rejects.
type registering struct {
	filter
	events []fwk.ClusterEventWithHint
}

func (r registering) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return r.events, nil
}

func TestWhoseEventsCount(t *testing.T) {
	own := []fwk.ClusterEventWithHint{{Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}}}
	p, err := profile.Configure(t.Context(), profile.Settings{Name: "s", Plugins: &configv1.Plugins{MultiPoint: set("Q B F G H")}},
		registry(sorter{"Q"}, binder{named: "B"}, filter{"F", nil}, registering{filter{"G", nil}, own}, registering{filter{"H", nil}, nil}),
		profile.Clients{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for name, events := range p.Events() {
		got[name] = ""
		for _, e := range events {
			got[name] += e.Event.Label()
		}
	}
	// F says nothing, so all events may help; H says that none does; binders and sorters reject nothing.
	if d := cmp.Diff(map[string]string{"F": "*All", "G": "NodeAdd", "H": ""}, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// signing signs.
type signing struct {
	filter
	status *fwk.Status
}

func (s signing) SignPod(context.Context, *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	return []fwk.SignFragment{{Key: s.Name(), Value: 1}}, s.status
}

func TestSignatures(t *testing.T) {
	pod := &corev1.Pod{Spec: corev1.PodSpec{SchedulerName: "s"}}
	for _, c := range []struct {
		name   string
		filter fwk.Plugin
		want   string
	}{
		{"all sign", signing{filter{"F", nil}, nil}, `{"F":1,"v1.Pod.Spec.SchedulerName":"s"}`},
		{"one does not sign this pod", signing{filter{"F", nil}, fwk.NewStatus(fwk.Unschedulable)}, ""},
		{"one signs nothing", filter{"F", nil}, ""},
	} {
		p, err := profile.Configure(t.Context(), profile.Settings{Name: "s", Plugins: &configv1.Plugins{MultiPoint: set("Q B F")}},
			registry(sorter{"Q"}, binder{named: "B"}, c.filter), profile.Clients{})
		if err != nil {
			t.Fatal(err)
		}
		if got := string(p.SignPod(t.Context(), pod)); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package schedulertest runs scheduler plug-ins through the scenarios of a testdata directory. [Run] is the one entry point.
//
// A scenario file is testdata/NAME.yaml, a list of [Case]; testdata/NAME.golden has the result of each: every node's
// rejection, or its scores by plug-in (raw, then normalised and weighted), and the best nodes or the message. Each decision
// is also made by the core, three times (fresh, cached, and without the cache), and must be one of the best each time. `go
// test -update` writes the golden files.
package schedulertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	fwk "k8s.io/kube-scheduler/framework"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/golden"
	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/config"
	"github.com/mortise-dev/mortise/internal/scheduler/core"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// Case is one pod to place.
type Case struct {
	Name  string        `json:"name"`
	Nodes []corev1.Node `json:"nodes"`
	Pods  []corev1.Pod  `json:"pods"` // with their nodes
	Pod   corev1.Pod    `json:"pod"`
	// Objects are other objects that plug-ins read, with apiVersion and kind. A case that has any, or an empty list of them, has informers.
	Objects []json.RawMessage `json:"objects"`
	// Args are arguments of plug-ins, as in a KubeSchedulerConfiguration.
	Args map[string]json.RawMessage `json:"args"`
}

// configured returns the registry with the case's arguments.
func (c *Case) configured(t *testing.T, registry profile.Registry) profile.Registry {
	t.Helper()
	type plugin struct {
		Name string          `json:"name"`
		Args json.RawMessage `json:"args"`
	}
	var plugins []plugin
	for _, name := range slices.Sorted(maps.Keys(c.Args)) {
		plugins = append(plugins, plugin{name, c.Args[name]})
	}
	data, err := json.Marshal(map[string]any{
		"apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
		"profiles": []any{map[string]any{"pluginConfig": plugins}},
	})
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := config.Parse(data)
	if err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	args := config.Args(&parsed.Profiles[0])
	registry = slices.Clone(registry)
	for i := range registry {
		registry[i].Args = args[registry[i].Name]
	}
	return registry
}

// Run runs all scenario files of the calling test's package with these plug-ins. It adds a sorter and a binder.
func Run(t *testing.T, registry profile.Registry) {
	t.Helper()
	files, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios in testdata: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		js, err := yaml.YAMLToJSONStrict(data)
		if err != nil {
			t.Fatal(err)
		}
		var cases []Case
		d := json.NewDecoder(strings.NewReader(string(js)))
		d.DisallowUnknownFields()
		if err := d.Decode(&cases); err != nil {
			t.Fatalf("decode %s: %v", file, err)
		}
		var out strings.Builder
		for _, c := range cases {
			fmt.Fprintf(&out, "# %s\n%s\n", c.Name, run(t, c.configured(t, registry), c))
		}
		golden.Compare(t, strings.TrimSuffix(file, ".yaml")+".golden", out.String())
	}
}

func run(t *testing.T, registry profile.Registry, c Case) string {
	t.Helper()
	cluster := cache.New()
	for i := range c.Nodes {
		n := &c.Nodes[i]
		if n.Status.Allocatable == nil {
			n.Status.Allocatable = corev1.ResourceList{}
		}
		cluster.SetNode(n)
	}
	for i := range c.Pods {
		complete(&c.Pods[i], i)
		cluster.SetPod(&c.Pods[i])
	}
	complete(&c.Pod, -1)
	snapshot := cache.NewSnapshot()
	cluster.Update(snapshot)
	clients, start := profile.Clients{}, func() {}
	if c.Objects != nil {
		clients, start = beside(t, &c)
	}
	clients.Lister = snapshot
	p := NewProfile(t, registry, clients)
	start()
	if st := p.RunPreEnqueue(t.Context(), &c.Pod); !st.IsSuccess() {
		return fmt.Sprintf("held back by %s: %s\n", st.Plugin(), st.Message())
	}
	text, best := explain(t.Context(), p, snapshot, &c.Pod)
	kept := core.New(core.Options{Rand: rand.New(rand.NewPCG(1, 2))})
	signature := p.Signature(t.Context(), &c.Pod)
	reserved := ""
	for i, x := range []*core.Core{kept, kept, core.New(core.Options{Forget: true})} {
		state := profile.NewCycleState()
		d, err := x.Schedule(t.Context(), p, snapshot, state, &c.Pod, signature)
		if err == nil && len(best) == 1 && i == 0 {
			reserved = reservations(t, p, &c.Pod, func() (undo func()) {
				if st := p.RunReservePluginsReserve(t.Context(), state, &c.Pod, d.Node); !st.IsSuccess() {
					t.Errorf("%s: reserve: %v", c.Name, st.AsError())
				}
				return func() { p.RunReservePluginsUnreserve(t.Context(), state, &c.Pod, d.Node) }
			})
		}
		switch {
		case err == nil && !slices.Contains(best, d.Node):
			t.Errorf("%s: decision %d is %s, the best are %v", c.Name, i, d.Node, best)
		case err != nil && len(best) > 0:
			t.Errorf("%s: decision %d failed: %v, the best are %v", c.Name, i, err, best)
		case err != nil && i == 0:
			text += "message: " + err.Error() + "\n"
			var fit *core.FitError
			if errors.As(err, &fit) {
				text += fmt.Sprintf("rejected by: %v\n", slices.Sorted(slices.Values(fit.UnschedulablePlugins.UnsortedList())))
			}
		}
	}
	return text + reserved
}

func complete(pod *corev1.Pod, i int) {
	if pod.Namespace == "" {
		pod.Namespace = "default"
	}
	if pod.Name == "" {
		pod.Name = fmt.Sprintf("pod-%d", i)
	}
	pod.UID = types.UID(pod.Namespace + "/" + pod.Name)
}

// explain runs the plug-ins on every node, without the core.
func explain(ctx context.Context, p *profile.Profile, s *cache.Snapshot, pod *corev1.Pod) (string, []string) {
	var out strings.Builder
	state := profile.NewCycleState()
	result, st, _ := p.RunPreFilter(ctx, state, pod, s.Nodes())
	if !st.IsSuccess() {
		fmt.Fprintf(&out, "prefilter: %v %s (%s)\n", st.Code(), st.Message(), st.Plugin())
		return out.String(), nil
	}
	var feasible []fwk.NodeInfo
	for _, n := range s.Nodes() {
		name := n.Node().Name
		if !result.AllNodes() && !result.NodeNames.Has(name) {
			fmt.Fprintf(&out, "%s: left out\n", name)
			continue
		}
		if st := p.RunFilterPlugins(ctx, state, pod, n); !st.IsSuccess() {
			fmt.Fprintf(&out, "%s: %v %s (%s)\n", name, st.Code(), st.Message(), st.Plugin())
			continue
		}
		feasible = append(feasible, n)
	}
	if len(feasible) == 0 {
		return out.String(), nil
	}
	if st := p.RunPreScorePlugins(ctx, state, pod, feasible); !st.IsSuccess() {
		return out.String() + "prescore: " + st.Message() + "\n", nil
	}
	scores, st := p.RunScorePlugins(ctx, state, pod, feasible)
	if !st.IsSuccess() {
		return out.String() + "score: " + st.Message() + "\n", nil
	}
	var best []string
	var top int64 = -1
	for _, n := range scores {
		fmt.Fprintf(&out, "%s: %d", n.Name, n.TotalScore)
		for i, x := range n.Scores {
			fmt.Fprintf(&out, " %s %d→%d", x.Name, n.RawScores[i].Score, x.Score)
		}
		out.WriteByte('\n')
		if n.TotalScore > top {
			top, best = n.TotalScore, nil
		}
		if n.TotalScore == top {
			best = append(best, n.Name)
		}
	}
	fmt.Fprintf(&out, "best: %s\n", strings.Join(best, ", "))
	return out.String(), best
}

// NewProfile returns a profile of the plug-ins, with a dummy sorter and binder.
func NewProfile(t testing.TB, registry profile.Registry, clients profile.Clients) *profile.Profile {
	t.Helper()
	registry = append(slices.Clone(registry), profile.Registration{
		Name: "Rest",
		New: func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
			if slices.ContainsFunc(registry, func(r profile.Registration) bool { return r.Name == "PrioritySort" }) {
				return binder{}, nil
			}
			return rest{}, nil
		},
	})
	p, err := profile.New(t.Context(), "default-scheduler", registry, clients)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

type binder struct{}

func (binder) Name() string { return "Rest" }

func (binder) Bind(context.Context, fwk.CycleState, *corev1.Pod, string) *fwk.Status { return nil }

func (binder) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) { return nil, nil }

type rest struct{ binder }

func (rest) Less(a, b fwk.QueuedEntityInfo) bool { return a.GetTimestamp().Before(b.GetTimestamp()) }

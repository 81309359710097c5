// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package defaultpreemption

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	policylisters "k8s.io/client-go/listers/policy/v1"
	toolscache "k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/core"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/nodeaffinity"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/noderesources"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/schedulertest"
)

// there is a pod on a node: priority, cores, when it began (in minutes), and its label app.
type there struct {
	node     string
	name     string
	priority int32
	cpu      string
	minute   int
	app      string
}

func (x there) pod() *corev1.Pod {
	begin := metav1.NewTime(time.Date(2026, 1, 1, 0, x.minute, 0, 0, time.UTC))
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: x.name, UID: types.UID(x.name), Labels: map[string]string{"app": x.app}},
		Spec: corev1.PodSpec{NodeName: x.node, Priority: &x.priority, Containers: []corev1.Container{{
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(x.cpu)}},
		}}},
		Status: corev1.PodStatus{StartTime: &begin},
	}
}

func TestVictims(t *testing.T) {
	for _, c := range []struct {
		name     string
		there    []there
		pod      there
		selector map[string]string
		budgets  map[string]int32 // disruptions allowed of an app
		want     string
	}{
		{
			name:  "only as many as needed, the least important",
			there: []there{{"a", "low", 1, "1", 0, ""}, {"a", "lower", 0, "1", 0, ""}, {"a", "mid", 5, "2", 0, ""}, {"b", "higher", 10, "4", 0, ""}},
			pod:   there{name: "p", priority: 9, cpu: "1"},
			want:  "a: lower",
		},
		{
			name:  "equals are not victims",
			there: []there{{"a", "equal", 9, "4", 0, ""}, {"b", "higher", 10, "4", 0, ""}},
			pod:   there{name: "p", priority: 9, cpu: "1"},
			want:  "0/2 nodes are available: 2 No preemption victims found for incoming pod.",
		},
		{
			name:  "where the highest victim is least important",
			there: []there{{"a", "five", 5, "4", 0, ""}, {"b", "three", 3, "2", 0, ""}, {"b", "two", 2, "2", 0, ""}},
			pod:   there{name: "p", priority: 9, cpu: "4"},
			want:  "b: three two",
		},
		{
			name:  "of equals the one that began last",
			there: []there{{"a", "old", 1, "4", 1, ""}, {"b", "young", 1, "4", 7, ""}},
			pod:   there{name: "p", priority: 9, cpu: "4"},
			want:  "b: young",
		},
		{
			name:    "a budget is spared",
			there:   []there{{"a", "guarded", 0, "4", 0, "db"}, {"b", "free", 8, "4", 0, "web"}},
			pod:     there{name: "p", priority: 9, cpu: "4"},
			budgets: map[string]int32{"db": 0},
			want:    "b: free",
		},
		{
			name:    "a budget is hurt where nothing else helps",
			there:   []there{{"a", "guarded", 0, "4", 0, "db"}, {"b", "higher", 10, "4", 0, "web"}},
			pod:     there{name: "p", priority: 9, cpu: "4"},
			budgets: map[string]int32{"db": 0},
			want:    "a: guarded",
		},
		{
			name:     "no preemption makes a label",
			there:    []there{{"a", "low", 0, "4", 0, ""}},
			pod:      there{name: "p", priority: 9, cpu: "1"},
			selector: map[string]string{"disk": "ssd"},
			want:     "0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
		},
		{
			name:  "too big for any node",
			there: []there{{"a", "low", 0, "4", 0, ""}},
			pod:   there{name: "p", priority: 9, cpu: "40"},
			want:  "0/2 nodes are available: 2 Preemption is not helpful for scheduling.",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster, snapshot := cache.New(), cache.NewSnapshot()
			for _, name := range []string{"a", "b"} {
				n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
				n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"),
					"pods": resource.MustParse("10")}
				cluster.SetNode(n)
			}
			for _, x := range c.there {
				cluster.SetPod(x.pod())
			}
			cluster.Update(snapshot)
			prof := schedulertest.NewProfile(t, profile.Registry{
				{Name: nodeaffinity.Name, New: nodeaffinity.New}, {Name: noderesources.FitName, New: noderesources.NewFit},
			}, profile.Clients{Lister: snapshot})
			p := &plugin{handle: prof, budgets: budgets(t, c.budgets), percentage: 10, absolute: 100}
			pod := c.pod.pod()
			pod.Spec.NodeSelector = c.selector
			state := profile.NewCycleState()
			_, err := core.New(core.Options{Forget: true}).Schedule(t.Context(), prof, snapshot, state, pod, nil)
			fit, ok := err.(*core.FitError) //nolint:errorlint // it is what Schedule returns
			if !ok {
				t.Fatalf("the pod is not unschedulable: %v", err)
			}
			before := describe(snapshot.Nodes())
			best, reasons, err := p.search(t.Context(), state, pod, snapshot.Nodes(), fit.Statuses)
			if err != nil {
				t.Fatal(err)
			}
			got := ""
			if best == nil {
				got = summary(len(snapshot.Nodes()), reasons)
			} else {
				got = best.node.Node().Name + ":"
				for _, v := range best.victims {
					got += " " + v.Name
				}
			}
			if got != c.want {
				t.Errorf("found %q, want %q", got, c.want)
			}
			if d := cmp.Diff(before, describe(snapshot.Nodes())); d != "" {
				t.Errorf("the snapshot was changed: %s", d)
			}
		})
	}
}

func budgets(t *testing.T, allowed map[string]int32) policylisters.PodDisruptionBudgetLister {
	t.Helper()
	store := toolscache.NewIndexer(toolscache.MetaNamespaceKeyFunc, toolscache.Indexers{})
	for app, n := range allowed {
		if err := store.Add(&policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: app},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: n},
		}); err != nil {
			t.Fatal(err)
		}
	}
	return policylisters.NewPodDisruptionBudgetLister(store)
}

func describe(nodes []fwk.NodeInfo) (out []string) {
	for _, n := range nodes {
		var pods []string
		for _, p := range n.GetPods() {
			pods = append(pods, p.GetPod().Name)
		}
		slices.Sort(pods)
		out = append(out, fmt.Sprint(n.Node().Name, n.GetGeneration(), n.GetRequested(), pods))
	}
	return out
}

// TestNodesThatHurtNoBudgetAreLookedFor: enough nodes are no reason to stop while each of them would hurt a budget.
func TestNodesThatHurtNoBudgetAreLookedFor(t *testing.T) {
	cluster, snapshot := cache.New(), cache.NewSnapshot()
	for i := range 30 {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%02d", i)}}
		n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("4"), "memory": resource.MustParse("8Gi"),
			"pods": resource.MustParse("10")}
		cluster.SetNode(n)
		x := there{n.Name, "pod-" + n.Name, 1, "4", 0, "db"}
		if i == 29 {
			x.app, x.priority = "web", 5
		}
		cluster.SetPod(x.pod())
	}
	cluster.Update(snapshot)
	prof := schedulertest.NewProfile(t, profile.Registry{{Name: noderesources.FitName, New: noderesources.NewFit}},
		profile.Clients{Lister: snapshot})
	p := &plugin{handle: prof, budgets: budgets(t, map[string]int32{"db": 0}), percentage: 10, absolute: 2}
	pod, state := there{name: "p", priority: 9, cpu: "4"}.pod(), profile.NewCycleState()
	_, err := core.New(core.Options{Forget: true}).Schedule(t.Context(), prof, snapshot, state, pod, nil)
	fit, ok := err.(*core.FitError) //nolint:errorlint // it is what Schedule returns
	if !ok {
		t.Fatal(err)
	}
	best, _, err := p.search(t.Context(), state, pod, snapshot.Nodes(), fit.Statuses)
	if err != nil || best == nil || best.hurt != 0 || best.node.Node().Name != "n29" {
		t.Errorf("found %+v, %v, want n29, which hurts nobody", best, err)
	}
}

// TestVictimsAreRemembered: as long as a victim is on the node, whatever is known of its end, the pod is not to preempt again.
func TestVictimsAreRemembered(t *testing.T) {
	cluster, snapshot := cache.New(), cache.NewSnapshot()
	for _, name := range []string{"a", "b"} {
		cluster.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	victim := there{"a", "victim", 1, "4", 0, ""}.pod()
	cluster.SetPod(victim)
	cluster.SetPod(there{"b", "other", 1, "4", 0, ""}.pod())
	cluster.Update(snapshot)
	p := &plugin{handle: schedulertest.NewProfile(t, nil, profile.Clients{Lister: snapshot})}
	pod := there{name: "p", priority: 9, cpu: "4"}.pod()
	statuses := core.NewStatuses("a", fwk.NewStatus(fwk.Unschedulable))
	if why := p.ineligible(pod, statuses); why != "" {
		t.Errorf("not eligible at first: %s", why)
	}
	p.remember(pod.UID, "a", []*corev1.Pod{victim})
	pod.Status.NominatedNodeName = "a"
	if why := p.ineligible(pod, statuses); why != "not eligible due to a terminating pod on the nominated node." {
		t.Errorf("the victim is there, and the pod may preempt again: %q", why)
	}
	cordoned := core.NewStatuses("a", fwk.NewStatus(fwk.UnschedulableAndUnresolvable))
	if why := p.ineligible(pod, cordoned); why != "" {
		t.Errorf("the node is of no use any more, and the pod waits for it: %s", why)
	}
	p.remember(pod.UID, "a", []*corev1.Pod{victim})
	cluster.RemovePod(victim.UID)
	cluster.Update(snapshot)
	if why := p.ineligible(pod, statuses); why != "" || len(p.ended) != 0 {
		t.Errorf("the victim is gone, and the pod may not preempt: %q, %v", why, p.ended)
	}
	for i := range 3 * manyEnded {
		p.remember(types.UID(fmt.Sprint(i)), "a", []*corev1.Pod{victim})
	}
	if len(p.ended) > manyEnded+1 {
		t.Errorf("%d pods are remembered that wait for nobody", len(p.ended))
	}
}

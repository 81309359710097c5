// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/core"
	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/imagelocality"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/interpodaffinity"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/nodeaffinity"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/nodename"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/nodeports"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/noderesources"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/nodeunschedulable"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/podtopologyspread"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/tainttoleration"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/queue"
	"github.com/mortise-dev/mortise/internal/scheduler/schedulertest"
)

func registry() profile.Registry {
	return profile.Registry{
		{Name: nodename.Name, New: nodename.New},
		{Name: nodeunschedulable.Name, New: nodeunschedulable.New},
		{Name: tainttoleration.Name, New: tainttoleration.New, Weight: 3},
		{Name: nodeaffinity.Name, New: nodeaffinity.New, Weight: 2},
		{Name: nodeports.Name, New: nodeports.New},
		{Name: noderesources.FitName, New: noderesources.NewFit},
		{Name: podtopologyspread.Name, New: podtopologyspread.New, Weight: 2},
		{Name: interpodaffinity.Name, New: interpodaffinity.New, Weight: 2},
		{Name: noderesources.BalancedName, New: noderesources.NewBalanced},
		{Name: imagelocality.Name, New: imagelocality.New},
	}
}

// cluster is a cache with its snapshot, and what draws random things for it.
type cluster struct {
	*cache.Cache
	snapshot *cache.Snapshot
	waiting  *queue.Queue // knows who is nominated
	profile  *profile.Profile
	rand     *rand.Rand
	made     int
}

func newCluster(t testing.TB, seed uint64) *cluster {
	c := &cluster{Cache: cache.New(), snapshot: cache.NewSnapshot(), waiting: queue.New(nil, queue.Options{}),
		rand: rand.New(rand.NewPCG(seed, 7))}
	c.profile = schedulertest.NewProfile(t, registry(), profile.Clients{Lister: c.snapshot, Nominator: c.waiting})
	return c
}

func (c *cluster) node(i int) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("node-%04d", i), Labels: map[string]string{
		corev1.LabelHostname: fmt.Sprintf("node-%04d", i), corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3),
	}}}
	n.Status.Allocatable = corev1.ResourceList{
		"cpu": *resource.NewQuantity(4+int64(c.rand.IntN(3))*4, resource.DecimalSI), "memory": resource.MustParse("32Gi"),
		"pods": resource.MustParse("110"),
	}
	if c.rand.IntN(5) == 0 {
		n.Labels["disk"] = "ssd"
	}
	if c.rand.IntN(6) == 0 {
		n.Spec.Taints = []corev1.Taint{{Key: "k", Effect: []corev1.TaintEffect{corev1.TaintEffectNoSchedule,
			corev1.TaintEffectPreferNoSchedule}[c.rand.IntN(2)]}}
	}
	n.Spec.Unschedulable = c.rand.IntN(15) == 0
	return n
}

func (c *cluster) pod() *corev1.Pod {
	c.made++
	app := fmt.Sprintf("app-%d", c.rand.IntN(4))
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("pod-%d", c.made), UID: types.UID(fmt.Sprint(c.made)),
		Labels: map[string]string{"app": app}}}
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
		"cpu": *resource.NewMilliQuantity(int64(c.rand.IntN(4))*250, resource.DecimalSI),
	}}}}
	same := &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
	switch c.rand.IntN(8) {
	case 0:
		p.Spec.NodeSelector = map[string]string{"disk": "ssd"}
	case 1:
		p.Spec.Tolerations = []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}}
	case 2:
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{HostPort: int32(8000 + c.rand.IntN(2))}}
	case 3:
		p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
			MaxSkew: 1, TopologyKey: corev1.LabelTopologyZone, LabelSelector: same,
			WhenUnsatisfiable: []corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway}[c.rand.IntN(2)],
		}}
	case 4:
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
				{TopologyKey: corev1.LabelHostname, LabelSelector: same},
			}}}
	}
	return p
}

// nominate makes a pod that is to come to a node once there is room.
func (c *cluster) nominate(t testing.TB, node int) *corev1.Pod {
	t.Helper()
	p := c.pod()
	p.Spec.Priority = ptr.To(int32(c.rand.IntN(3) - 1))
	p.Spec.Containers[0].Resources.Requests["cpu"] = *resource.NewQuantity(int64(1+c.rand.IntN(6)), resource.DecimalSI)
	info, err := nodeinfo.NewPodInfo(p)
	if err != nil {
		t.Fatal(err)
	}
	c.waiting.AddNominatedPod(klog.Logger{}, info, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride,
		NominatedNodeName: fmt.Sprintf("node-%04d", node)})
	return p
}

func (c *cluster) assume(t testing.TB, p *corev1.Pod, node string) {
	t.Helper()
	placed := *p
	placed.Spec.NodeName = node
	info, err := nodeinfo.NewPodInfo(&placed)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Assume(info); err != nil {
		t.Fatal(err)
	}
}

// reference is the slow and obvious decision: every plug-in is asked about every node, and nothing is kept. It returns the
// best nodes.
func (c *cluster) reference(t testing.TB, p *corev1.Pod) []string {
	t.Helper()
	fresh := cache.New()
	for _, n := range c.snapshot.Nodes() {
		fresh.SetNode(n.Node())
		for _, other := range n.GetPods() {
			fresh.SetPod(other.GetPod())
		}
	}
	s := cache.NewSnapshot()
	fresh.Update(s)
	prof := schedulertest.NewProfile(t, registry(), profile.Clients{Lister: s, Nominator: c.waiting})
	state := profile.NewCycleState()
	if _, st, _ := prof.RunPreFilter(t.Context(), state, p, s.Nodes()); !st.IsSuccess() {
		return nil
	}
	var feasible []fwk.NodeInfo
	for _, n := range s.Nodes() {
		if prof.RunFilterPluginsWithNominatedPods(t.Context(), state, p, n).IsSuccess() {
			feasible = append(feasible, n)
		}
	}
	if st := prof.RunPreScorePlugins(t.Context(), state, p, feasible); !st.IsSuccess() {
		t.Fatal(st.AsError())
	}
	scores, st := prof.RunScorePlugins(t.Context(), state, p, feasible)
	if !st.IsSuccess() {
		t.Fatal(st.AsError())
	}
	var best []string
	top := int64(-1)
	for _, x := range scores {
		if x.TotalScore > top {
			top, best = x.TotalScore, nil
		}
		if x.TotalScore == top {
			best = append(best, x.Name)
		}
	}
	return best
}

// TestReference: on random clusters that change at random, each decision is one that the reference allows.
func TestReference(t *testing.T) {
	for seed := range uint64(120) {
		c := newCluster(t, seed)
		nodes := 3 + c.rand.IntN(20)
		for i := range nodes {
			c.SetNode(c.node(i))
		}
		decide := core.New(core.Options{Rand: rand.New(rand.NewPCG(seed, 1))})
		var placed, nominated []*corev1.Pod
		for step := range 25 {
			switch c.rand.IntN(14) {
			case 0:
				c.SetNode(c.node(c.rand.IntN(nodes)))
			case 1:
				if len(placed) > 0 {
					i := c.rand.IntN(len(placed))
					c.RemovePod(placed[i].UID)
					placed = slices.Delete(placed, i, i+1)
				}
			case 2, 3, 4:
				nominated = append(nominated, c.nominate(t, c.rand.IntN(nodes)))
			case 5:
				if len(nominated) > 0 {
					c.waiting.DeleteNominatedPodIfExists(nominated[0])
					nominated = nominated[1:]
				}
			}
			p := c.pod()
			if len(nominated) > 0 && c.rand.IntN(4) == 0 {
				p = nominated[0] // its own nomination does not stand in its way
			}
			c.Update(c.snapshot)
			if c.rand.IntN(2) == 0 { // one like it was decided on before
				twin := *p
				twin.UID = "twin"
				_, _ = decide.Schedule(t.Context(), c.profile, c.snapshot, profile.NewCycleState(), &twin, c.profile.Signature(t.Context(), &twin))
			}
			d, err := decide.Schedule(t.Context(), c.profile, c.snapshot, profile.NewCycleState(), p, c.profile.Signature(t.Context(), p))
			want := c.reference(t, p)
			var fit *core.FitError
			switch {
			case err == nil && !slices.Contains(want, d.Node):
				t.Fatalf("seed %d, step %d: %s went to %s, the best are %v", seed, step, p.Name, d.Node, want)
			case err != nil && (len(want) > 0 || !errors.As(err, &fit)):
				t.Fatalf("seed %d, step %d: %v, the best are %v", seed, step, err, want)
			case err == nil:
				c.assume(t, p, d.Node)
				c.waiting.DeleteNominatedPodIfExists(p)
				nominated = slices.DeleteFunc(nominated, func(o *corev1.Pod) bool { return o.UID == p.UID })
				placed = append(placed, p)
			}
		}
	}
}

// TestNominated: what is kept of a node that pods are nominated to is given up with what it depends on.
func TestNominated(t *testing.T) {
	c := newCluster(t, 1)
	n := c.node(0)
	n.Spec, n.Status.Allocatable["cpu"] = corev1.NodeSpec{}, resource.MustParse("4")
	c.SetNode(n)
	decide := core.New(core.Options{})
	pod := func(uid string, cpus int64, priority int32) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: uid, UID: types.UID(uid)}}
		p.Spec.Priority = &priority
		p.Spec.Containers = []corev1.Container{{Name: "c",
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": *resource.NewQuantity(cpus, resource.DecimalSI)}}}}
		return p
	}
	nominate := func(p *corev1.Pod) {
		info, err := nodeinfo.NewPodInfo(p)
		if err != nil {
			t.Fatal(err)
		}
		c.waiting.AddNominatedPod(klog.Logger{}, info, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: n.Name})
	}
	fits := func(when string, p *corev1.Pod, want bool) {
		t.Helper()
		for range 2 { // the second time by what was kept
			c.Update(c.snapshot)
			_, err := decide.Schedule(t.Context(), c.profile, c.snapshot, profile.NewCycleState(), p, c.profile.Signature(t.Context(), p))
			if (err == nil) != want {
				t.Errorf("%s: %v", when, err)
			}
		}
	}
	first := pod("first", 3, 1)
	fits("nobody is nominated", pod("a", 3, 0), true)
	nominate(pod("small", 1, 2))
	nominate(first)
	fits("the two are too many for a third", pod("b", 3, 0), false)
	fits("its own nomination does not matter to the nominated", first, true)
	fits("but to others like it", pod("c", 3, 1), false)
	fits("nor does the nomination of one below", pod("d", 3, 2), true)
	fits("those below it still see both", pod("e", 3, 0), false)
	c.waiting.DeleteNominatedPodIfExists(first)
	fits("the small one alone leaves room", pod("f", 3, 0), true)
	c.assume(t, pod("placed", 1, 0), n.Name)
	fits("another pod came", pod("g", 3, 0), false)
}

func TestSearchGoesOnWhereItEnded(t *testing.T) {
	c := newCluster(t, 1)
	for i := range 400 {
		n := c.node(i)
		n.Spec = corev1.NodeSpec{}
		c.SetNode(n)
	}
	c.Update(c.snapshot)
	decide := core.New(core.Options{})
	seen := map[string]bool{}
	for range 40 {
		p := &corev1.Pod{}
		d, err := decide.Schedule(t.Context(), c.profile, c.snapshot, profile.NewCycleState(), p, nil)
		if err != nil {
			t.Fatal(err)
		}
		if d.Feasible != 188 { // 50 % - 400/125
			t.Fatalf("%d nodes were found feasible, want 188", d.Feasible)
		}
		seen[d.Node] = true
	}
	if len(seen) < 20 {
		t.Errorf("40 pods went to %d nodes", len(seen))
	}
}

// decisions are specs of pods that are scheduled one after the other.
func decisions() map[string]func(*corev1.PodSpec) {
	blue := &metav1.LabelSelector{MatchLabels: map[string]string{"color": "blue"}}
	spread := func(key string, skew int32, when corev1.UnsatisfiableConstraintAction) func(*corev1.PodSpec) {
		return func(s *corev1.PodSpec) {
			s.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{TopologyKey: key, MaxSkew: skew, WhenUnsatisfiable: when,
				LabelSelector: blue}}
		}
	}
	term := func(key string) corev1.PodAffinityTerm {
		return corev1.PodAffinityTerm{TopologyKey: key, LabelSelector: blue}
	}
	return map[string]func(*corev1.PodSpec){
		"plain":        func(*corev1.PodSpec) {},
		"spread zones": spread(corev1.LabelTopologyZone, 5, corev1.DoNotSchedule),
		"spread hosts": spread(corev1.LabelHostname, 1, corev1.ScheduleAnyway),
		"near": func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(corev1.LabelTopologyZone)}}}
		},
		"rather near": func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
					{Weight: 1, PodAffinityTerm: term(corev1.LabelHostname)}}}}
		},
		"apart": func(s *corev1.PodSpec) {
			s.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(corev1.LabelHostname)}}}
		},
	}
}

func BenchmarkDecision(b *testing.B) {
	all := decisions()
	for _, name := range slices.Sorted(maps.Keys(all)) {
		for _, keep := range []bool{true, false} {
			b.Run(fmt.Sprintf("%s/keep=%v", name, keep), func(b *testing.B) {
				c := newCluster(b, 1)
				for i := range 5000 {
					n := c.node(i)
					n.Spec = corev1.NodeSpec{}
					n.Status.Allocatable["cpu"] = resource.MustParse("10000")
					n.Status.Allocatable["pods"] = resource.MustParse("100000")
					c.SetNode(n)
				}
				decide := core.New(core.Options{Forget: !keep})
				p := c.pod()
				p.Labels = map[string]string{"color": "blue"}
				p.Spec = corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i",
					Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")}}}}}
				all[name](&p.Spec)
				signature := c.profile.Signature(b.Context(), p)
				placed := 0
				b.ReportAllocs()
				for b.Loop() {
					next := *p
					c.made++
					next.UID = types.UID(fmt.Sprint(c.made))
					c.Update(c.snapshot)
					d, err := decide.Schedule(b.Context(), c.profile, c.snapshot, profile.NewCycleState(), &next, signature)
					if err != nil {
						b.Fatal(err)
					}
					if placed++; name != "apart" || placed < 4000 { // there is room for 5000
						c.assume(b, &next, d.Node)
					}
				}
			})
		}
	}
}

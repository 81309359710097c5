// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubescheduler

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// dice makes clusters and pods. All of a cluster follows from its seed.
type dice struct {
	*rand.Rand
	made int
}

func newDice(seed uint64) *dice { return &dice{Rand: rand.New(rand.NewPCG(seed, 1))} }

// in tells true so many times out of a hundred.
func (d *dice) in(percent int) bool { return d.IntN(100) < percent }

func pick[T any](d *dice, of ...T) T { return of[d.IntN(len(of))] }

func (d *dice) some(most int, of ...string) []string {
	of = slices.Clone(of)
	d.Shuffle(len(of), func(i, j int) { of[i], of[j] = of[j], of[i] })
	return of[:1+d.IntN(min(most, len(of)))]
}

// What labels, taints, resources and images there are.
var (
	keys     = []string{corev1.LabelTopologyZone, "rack", "disk"}
	zones    = []string{"a", "b", "c"}
	racks    = []string{"1", "2", "3", "4"}
	disks    = []string{"ssd", "hdd"}
	topology = []string{corev1.LabelHostname, corev1.LabelTopologyZone, "rack"}
	apps     = []string{"web", "db", "cache"}
	images   = []string{"registry.example.com/web:v1", "registry.example.com/db:v2", "registry.example.com/big:v3"}
	gpu      = corev1.ResourceName("example.com/gpu")
)

const mebi = 1 << 20

// node makes the node of that number, or makes it anew.
func (d *dice) node(i int) *corev1.Node {
	name := fmt.Sprintf("node-%03d", i)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: map[string]string{corev1.LabelHostname: name}}}
	if d.in(90) {
		n.Labels[corev1.LabelTopologyZone] = pick(d, zones...)
	}
	if d.in(80) {
		n.Labels["rack"] = pick(d, racks...)
	}
	if d.in(70) {
		n.Labels["disk"] = pick(d, disks...)
	}
	if d.in(8) {
		n.Spec.Unschedulable = true
	}
	for _, key := range []string{"dedicated", "slow"} {
		if d.in(15) {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{
				Key: key, Value: pick(d, "", "x", "y"),
				Effect: pick(d, corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute),
			})
		}
	}
	n.Status.Allocatable = corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewMilliQuantity(int64(pick(d, 1000, 2000, 4000, 3500)), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(int64(pick(d, 1024, 4096, 8192))*mebi, resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(int64(pick(d, 3, 10, 110)), resource.DecimalSI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(int64(pick(d, 1000, 10000))*mebi, resource.BinarySI),
	}
	if d.in(25) {
		n.Status.Allocatable[gpu] = *resource.NewQuantity(int64(1+d.IntN(4)), resource.DecimalSI)
	}
	n.Status.Capacity = n.Status.Allocatable
	if d.in(30) {
		n.Status.DeclaredFeatures = []string{"RestartAllContainersOnContainerExits"}
	}
	for _, image := range images {
		if d.in(30) {
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{image}, SizeBytes: int64(20+d.IntN(900)) * mebi})
		}
	}
	return n
}

// pod makes one of a template.
func (d *dice) pod(template *corev1.Pod) *corev1.Pod {
	d.made++
	p := template.DeepCopy()
	p.Name = fmt.Sprintf("pod-%d", d.made)
	p.UID = types.UID(p.Name)
	return p
}

// template makes a pod without a name. Some constraints are rare, so that most pods have few.
func (d *dice) template() *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: pick(d, "default", "default", "other"),
			Labels: map[string]string{"app": pick(d, apps...), "rev": pick(d, "1", "2")}},
		Spec: corev1.PodSpec{SchedulerName: corev1.DefaultSchedulerName, Priority: new(int32), RestartPolicy: corev1.RestartPolicyAlways},
	}
	for i := range 1 + d.IntN(2) {
		p.Spec.Containers = append(p.Spec.Containers, d.container(fmt.Sprintf("c%d", i)))
	}
	if d.in(15) {
		c := d.container("init")
		if d.in(40) {
			c.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		}
		p.Spec.InitContainers = []corev1.Container{c}
	}
	if d.in(8) {
		p.Spec.Overhead = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("120m")}
	}
	if d.in(15) {
		p.Spec.NodeSelector = map[string]string{}
		for _, key := range d.some(2, keys...) {
			p.Spec.NodeSelector[key] = d.value(key)
		}
	}
	if d.in(30) {
		for range 1 + d.IntN(2) {
			p.Spec.Tolerations = append(p.Spec.Tolerations, d.toleration())
		}
	}
	if d.in(60) {
		p.Spec.Affinity = &corev1.Affinity{}
		d.nodeAffinity(p.Spec.Affinity)
		d.podAffinity(p.Spec.Affinity)
	}
	if d.in(40) {
		d.use(p)
	}
	if d.in(30) {
		for _, key := range d.some(2, topology...) {
			p.Spec.TopologySpreadConstraints = append(p.Spec.TopologySpreadConstraints, d.spread(key))
		}
	}
	return p
}

func (d *dice) container(name string) corev1.Container {
	c := corev1.Container{Name: name, Image: pick(d, images...)}
	if d.in(80) {
		c.Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *resource.NewMilliQuantity(int64(pick(d, 50, 100, 250, 900)),
			resource.DecimalSI)}
		if d.in(70) {
			c.Resources.Requests[corev1.ResourceMemory] = *resource.NewQuantity(int64(pick(d, 64, 200, 900))*mebi, resource.BinarySI)
		}
		if d.in(15) {
			c.Resources.Requests[corev1.ResourceEphemeralStorage] = *resource.NewQuantity(int64(pick(d, 100, 600))*mebi, resource.BinarySI)
		}
		if d.in(12) {
			c.Resources.Requests[gpu] = resource.MustParse("1")
			c.Resources.Limits = corev1.ResourceList{gpu: resource.MustParse("1")}
		}
	}
	if d.in(3) {
		c.RestartPolicyRules = []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestartAllContainers}}
	}
	if d.in(15) {
		c.Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: pick(d, int32(80), 443), HostIP: pick(d, "", "127.0.0.1", "0.0.0.0"),
			Protocol: pick(d, corev1.ProtocolTCP, corev1.ProtocolUDP)}}
	}
	return c
}

func (d *dice) value(key string) string {
	switch key {
	case corev1.LabelTopologyZone:
		return pick(d, zones...)
	case "rack":
		return pick(d, racks...)
	}
	return pick(d, disks...)
}

func (d *dice) toleration() corev1.Toleration {
	t := corev1.Toleration{Key: pick(d, "dedicated", "slow"), Operator: pick(d, corev1.TolerationOpExists, corev1.TolerationOpEqual),
		Effect: pick(d, "", corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule)}
	if t.Operator == corev1.TolerationOpEqual {
		t.Value = pick(d, "", "x", "y")
	} else if d.in(20) {
		t.Key = ""
	}
	return t
}

func (d *dice) nodeTerm() corev1.NodeSelectorTerm {
	key := pick(d, keys...)
	r := corev1.NodeSelectorRequirement{Key: key, Operator: pick(d, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn,
		corev1.NodeSelectorOpExists, corev1.NodeSelectorOpDoesNotExist)}
	switch r.Operator {
	case corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn:
		r.Values = []string{d.value(key), d.value(key)}
	}
	if d.in(20) {
		r = corev1.NodeSelectorRequirement{Key: "rack", Operator: pick(d, corev1.NodeSelectorOpGt, corev1.NodeSelectorOpLt),
			Values: []string{"2"}}
	}
	term := corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{r}}
	if d.in(10) {
		term = corev1.NodeSelectorTerm{MatchFields: []corev1.NodeSelectorRequirement{{
			Key: metav1.ObjectNameField, Operator: pick(d, corev1.NodeSelectorOpIn, corev1.NodeSelectorOpNotIn),
			Values: []string{fmt.Sprintf("node-%03d", d.IntN(8))},
		}}}
	}
	return term
}

func (d *dice) nodeAffinity(a *corev1.Affinity) {
	if d.in(55) {
		return
	}
	a.NodeAffinity = &corev1.NodeAffinity{}
	if d.in(50) {
		s := &corev1.NodeSelector{}
		for range 1 + d.IntN(2) {
			s.NodeSelectorTerms = append(s.NodeSelectorTerms, d.nodeTerm())
		}
		a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution = s
	}
	for range d.IntN(3) {
		a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
			corev1.PreferredSchedulingTerm{Weight: int32(1 + d.IntN(100)), Preference: d.nodeTerm()})
	}
}

func (d *dice) podTerm() corev1.PodAffinityTerm {
	t := corev1.PodAffinityTerm{TopologyKey: pick(d, topology...), LabelSelector: d.selector()}
	switch d.IntN(6) {
	case 0:
		t.Namespaces = []string{"other"}
	case 1:
		t.NamespaceSelector = &metav1.LabelSelector{}
	case 2:
		t.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "other"}}
	}
	return t
}

func (d *dice) selector() *metav1.LabelSelector {
	if d.in(25) {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn,
			Values: d.some(2, apps...)}}}
	}
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": pick(d, apps...)}}
}

func (d *dice) podAffinity(a *corev1.Affinity) {
	if d.in(35) {
		a.PodAffinity = &corev1.PodAffinity{}
		if d.in(50) {
			a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []corev1.PodAffinityTerm{d.podTerm()}
		}
		for range d.IntN(3) {
			a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(a.PodAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
				corev1.WeightedPodAffinityTerm{Weight: int32(1 + d.IntN(100)), PodAffinityTerm: d.podTerm()})
		}
	}
	if d.in(35) {
		a.PodAntiAffinity = &corev1.PodAntiAffinity{}
		if d.in(50) {
			a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution = []corev1.PodAffinityTerm{d.podTerm()}
		}
		for range d.IntN(3) {
			a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution = append(
				a.PodAntiAffinity.PreferredDuringSchedulingIgnoredDuringExecution,
				corev1.WeightedPodAffinityTerm{Weight: int32(1 + d.IntN(100)), PodAffinityTerm: d.podTerm()})
		}
	}
}

func (d *dice) spread(key string) corev1.TopologySpreadConstraint {
	c := corev1.TopologySpreadConstraint{
		MaxSkew: int32(1 + d.IntN(3)), TopologyKey: key, LabelSelector: d.selector(),
		WhenUnsatisfiable: pick(d, corev1.DoNotSchedule, corev1.ScheduleAnyway),
	}
	if c.WhenUnsatisfiable == corev1.DoNotSchedule && d.in(25) {
		c.MinDomains = new(int32(1 + d.IntN(4)))
	}
	if d.in(25) {
		c.NodeTaintsPolicy = new(pick(d, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore))
	}
	if d.in(25) {
		c.NodeAffinityPolicy = new(pick(d, corev1.NodeInclusionPolicyHonor, corev1.NodeInclusionPolicyIgnore))
	}
	if d.in(20) {
		c.MatchLabelKeys = []string{"rev"}
	}
	return c
}

// names are the keys of what has names, in order.
func names[V any](of map[string]V) []string { return slices.Sorted(maps.Keys(of)) }

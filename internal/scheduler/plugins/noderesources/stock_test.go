// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package noderesources

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/structured"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/core"
	"github.com/mortise-dev/mortise/internal/scheduler/devices"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/schedulertest"
)

const gpu = corev1.ResourceName("example.com/gpu")

// manager has one class, behind example.com/gpu, and counts what it is asked.
type manager struct {
	*devices.Claims
	fwk.SharedDRAManager // of the rest nobody asks
	class                *resourcev1.DeviceClass
	slices               map[string]*resourcev1.ResourceSlice
	asked                asked
}

type asked struct{ classes, slices, taken int }

func (m *manager) ResourceClaims() fwk.ResourceClaimTracker     { return m }
func (m *manager) ResourceSlices() fwk.ResourceSliceLister      { return m }
func (m *manager) DeviceClassResolver() fwk.DeviceClassResolver { return m }

func (m *manager) GetDeviceClass(name corev1.ResourceName) *resourcev1.DeviceClass {
	m.asked.classes++
	if name == gpu {
		return m.class
	}
	return nil
}

func (m *manager) ListWithDeviceTaintRules() (all []*resourcev1.ResourceSlice, err error) {
	m.asked.slices++
	for _, s := range m.slices {
		all = append(all, s)
	}
	return all, nil
}

func (m *manager) GatherAllocatedState() (*structured.AllocatedState, error) {
	m.asked.taken++
	return m.Claims.GatherAllocatedState()
}

// publish has the node have so many devices of a model.
func (m *manager) publish(node, model string, n int) {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: node}, Spec: resourcev1.ResourceSliceSpec{
		Driver: "d.example.com", NodeName: &node, Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range n {
		s.Spec.Devices = append(s.Spec.Devices, resourcev1.Device{Name: strconv.Itoa(i),
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: &model}}})
	}
	m.slices[node] = s
}

// claim has a claim have so many of the node's devices.
func (m *manager) claim(version int, node string, n int) {
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x", UID: "x",
		ResourceVersion: strconv.Itoa(version)}}
	c.Status.Allocation = &resourcev1.AllocationResult{}
	for i := range n {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results,
			resourcev1.DeviceRequestAllocationResult{Driver: "d.example.com", Pool: node, Device: strconv.Itoa(i)})
	}
	m.Handler().OnAdd(c, false)
}

// TestScoresByDevicesAreNotKept: devices are taken, go and come while nothing of the nodes changes, and each decision is by what there is
// then. A decision asks what is taken, and for the slices, once. Pods that ask for no such resource ask for nothing.
func TestScoresByDevicesAreNotKept(t *testing.T) {
	m := &manager{Claims: devices.NewClaims(), slices: map[string]*resourcev1.ResourceSlice{}, class: class("big")}
	cluster, snapshot := cache.New(), cache.NewSnapshot()
	const nodes = 8
	for i := range nodes {
		name := fmt.Sprint("n", i)
		cluster.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			"cpu": resource.MustParse("4"), "pods": resource.MustParse("10"), "example.com/own": resource.MustParse("4"),
		}}})
		m.publish(name, "big", 4)
	}
	specs := []configv1.ResourceSpec{{Name: string(gpu), Weight: 1}, {Name: "example.com/own", Weight: 1}}
	p := schedulertest.NewProfile(t, profile.Registry{
		{Name: FitName, New: NewFit, Weight: 9,
			Args: &configv1.NodeResourcesFitArgs{ScoringStrategy: &configv1.ScoringStrategy{Type: configv1.MostAllocated, Resources: specs}}},
		{Name: BalancedName, New: NewBalanced, Args: &configv1.NodeResourcesBalancedAllocationArgs{Resources: specs}},
	}, profile.Clients{Lister: snapshot, Devices: m})
	decide := core.New(core.Options{Rand: rand.New(rand.NewPCG(1, 2))})
	pods := map[string]*corev1.Pod{}
	for name, r := range map[string]corev1.ResourceName{"devices": gpu, "own": "example.com/own", "plain": "cpu"} {
		pods[name] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{r: resource.MustParse("1")}},
			}}}}
	}
	signature := map[string]fwk.PodSignature{}
	for name, pod := range pods {
		signature[name] = p.Signature(t.Context(), pod) // before any of what follows, as of a pod that waits
	}
	schedule := func(name string) core.Decision {
		t.Helper()
		cluster.Update(snapshot)
		m.asked = asked{}
		d, err := decide.Schedule(t.Context(), p, snapshot, profile.NewCycleState(), pods[name], signature[name])
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for i, step := range []struct {
		what string
		do   func()
		want string
	}{
		{"some are taken", func() { m.claim(1, "n3", 2) }, "n3"},
		{"others are", func() { m.claim(2, "n5", 1) }, "n5"},
		{"a node has fewer", func() { m.publish("n1", "big", 2); m.claim(3, "n2", 1) }, "n1"},
		{"those are of no use", func() { m.publish("n1", "small", 2) }, "n2"},
		{"another model is", func() { m.class = class("small") }, "n1"},
		{"they go", func() { delete(m.slices, "n1"); m.class = class("big"); m.claim(4, "n7", 3) }, "n7"},
	} {
		step.do()
		for range 2 {
			if d := schedule("devices"); d.Node != step.want || d.Feasible != nodes {
				t.Errorf("step %d, %s: node %s of %d, want %s of %d", i, step.what, d.Node, d.Feasible, step.want, nodes)
			}
			if m.asked.slices != 1 || m.asked.taken != 1 {
				t.Errorf("step %d, %s: asked %+v, want one question of slices and one of what is taken", i, step.what, m.asked)
			}
		}
	}
	for range 2 {
		if schedule("plain"); m.asked != (asked{}) {
			t.Errorf("a plain pod asks %+v", m.asked)
		}
		if schedule("own"); m.asked.slices+m.asked.taken > 0 {
			t.Errorf("a pod that asks for what nodes themselves have asks %+v", m.asked)
		}
	}
}

// TestWhatIsKnownOfSlicesIsKept: expressions are not asked again about slices that are as they were.
func TestWhatIsKnownOfSlicesIsKept(t *testing.T) {
	m := &manager{slices: map[string]*resourcev1.ResourceSlice{}, class: class("big")}
	for i := range 8 {
		m.publish(fmt.Sprint("n", i), "big", 4)
	}
	s := newStock(m, []configv1.ResourceSpec{{Name: string(gpu), Weight: 1}})
	supplied := func() *supply {
		t.Helper()
		got, err := s.supply(t.Context(), gpu)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	first := supplied()
	if again := supplied(); again != first { // the slices come in another order
		t.Error("worked out twice for the same slices")
	}
	m.publish("n1", "big", 3)
	next := supplied()
	for i := range 8 {
		node := fmt.Sprint("n", i)
		a, b := first.byNode[node], next.byNode[node]
		if kept := &a[0].ids[0] == &b[0].ids[0]; kept == (node == "n1") {
			t.Errorf("%s: kept is %t", node, kept)
		}
	}
	if n := len(next.byNode["n1"][0].ids); n != 3 || len(next.slices) != 8 {
		t.Errorf("n1 has %d devices, of %d slices in all", n, len(next.slices))
	}
	m.class = class("big")
	if other := supplied(); &other.byNode["n2"][0].ids[0] == &next.byNode["n2"][0].ids[0] {
		t.Error("what an old form of the class selected is kept")
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("the end"))
	m.class = class("small")
	if _, err := s.supply(ctx, gpu); err == nil || err.Error() != "find devices of class gpu: the end" {
		t.Errorf("at the end: %v", err)
	}
	if got := supplied(); len(got.byNode) != 0 {
		t.Errorf("big ones are small ones: %v", got.byNode)
	}
	m.class = nil
	if supplied() != nil || len(s.supplies) > 0 {
		t.Error("something is kept of a class that has gone")
	}
}

func class(model string) *resourcev1.DeviceClass {
	return &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"}, Spec: resourcev1.DeviceClassSpec{
		ExtendedResourceName: ptr.To(string(gpu)),
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf(
			"device.attributes['d.example.com'].model == '%s'", model)}}},
	}}
}

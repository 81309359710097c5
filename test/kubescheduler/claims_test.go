// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubescheduler

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clientcache "k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
	schedulerconfig "k8s.io/kubernetes/pkg/scheduler/apis/config"
	upstream "k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/devices"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/dynamicresources"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

var worlds = flag.Int("worlds", 300, "how many random worlds of devices")

const drive = "d.example.com"

// TestClaims: DynamicResources and kube-scheduler's own, over the same devices and claims, say the same of each pod and node. So do the
// plug-ins that score nodes by extended resources which classes of devices stand behind (scores_test.go). What is found is reserved, and
// the next pod is decided on with it.
func TestClaims(t *testing.T) {
	var placed, refused, byClass int
	for i := range *worlds {
		w := newWorld(t, *first+uint64(i))
		p, r := w.live()
		placed, refused, byClass = placed+p, refused+r, byClass+w.byClass
		w.end()
		if t.Failed() {
			return
		}
	}
	t.Logf("%d worlds: %d pods placed, %d without a node for the same reasons, %d scores by devices behind extended resources", *worlds,
		placed, refused, byClass)
	if placed == 0 || refused == 0 || byClass == 0 {
		t.Error("all worlds are alike")
	}
}

// world is some nodes with devices, and claims.
type world struct {
	*dice
	t       *testing.T
	seed    uint64
	nodes   []*corev1.Node
	pods    []*corev1.Pod
	objects []runtime.Object
	own     *profile.Profile
	theirs  theirs
	infos   []fwk.NodeInfo
	scorers []rivals
	byClass int // scores of nodes by devices behind an extended resource that both gave
	end     func()
}

// theirs is what of kube-scheduler's plug-in is asked.
type theirs interface {
	fwk.PreEnqueuePlugin
	fwk.PreFilterPlugin
	fwk.FilterPlugin
	fwk.ScorePlugin
}

func newWorld(t *testing.T, seed uint64) *world {
	t.Helper()
	w := &world{dice: newDice(seed), t: t, seed: seed}
	w.fill()
	ctx, cancel := context.WithCancel(t.Context())
	client := fake.NewClientset(w.objects...)
	factory := informers.NewSharedInformerFactory(client, 0)
	manager, err := devices.New(ctx, factory)
	if err != nil {
		t.Fatal(err)
	}
	w.end = func() {
		cancel()
		factory.Shutdown()
		manager.Stop()
	}
	all, snapshot := cache.New(), cache.NewSnapshot()
	for _, n := range w.nodes {
		all.SetNode(n)
	}
	all.Update(snapshot)
	w.infos = snapshot.Nodes()
	clients := profile.Clients{Client: client, Informers: factory, Lister: snapshot, Devices: manager}
	if w.own, err = profile.New(ctx, corev1.DefaultSchedulerName, builtin.SchedulerPlugins(), clients); err != nil {
		t.Fatal(err)
	}
	args := &schedulerconfig.DynamicResourcesArgs{FilterTimeout: &metav1.Duration{Duration: time.Minute}}
	plugin, err := upstream.New(ctx, args, w.own, feature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate))
	if err != nil {
		t.Fatal(err)
	}
	w.theirs = plugin.(theirs)
	w.rate(ctx)
	known, err := manager.Follow()
	if err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(ctx)
	if result := factory.WaitForCacheSyncWithContext(ctx); result.Err != nil {
		t.Fatal(result.Err)
	}
	if !clientcache.WaitFor(ctx, "", known...) {
		t.Fatal("the claims are not known")
	}
	return w
}

func (w *world) live() (placed, refused int) {
	w.t.Helper()
	plugin, err := dynamicresources.New(w.t.Context(), nil, w.own)
	if err != nil {
		w.t.Fatal(err)
	}
	ours := plugin.(interface {
		theirs
		fwk.PreScorePlugin
		fwk.ReservePlugin
	})
	for _, pod := range w.pods {
		if w.differ(pod, "PreEnqueue", ours.PreEnqueue(w.t.Context(), pod), w.theirs.PreEnqueue(w.t.Context(), pod)) {
			return
		}
		if got, want := signs(w.t.Context(), pod, ours, w.scorers[0].ours, w.scorers[1].ours),
			signs(w.t.Context(), pod, w.theirs, w.scorers[0].theirs, w.scorers[1].theirs); got != want {
			w.complain(pod, "signed: %t, want %t", got, want)
			return
		}
		mine, other := profile.NewCycleState(), profile.NewCycleState()
		_, st := ours.PreFilter(w.t.Context(), mine, pod, w.infos)
		_, want := w.theirs.PreFilter(w.t.Context(), other, pod, w.infos)
		if w.differ(pod, "PreFilter", st, want) {
			return
		}
		if !st.IsSuccess() {
			refused++
			continue
		}
		var feasible []fwk.NodeInfo
		chosen := ""
		for _, info := range w.infos {
			name := info.Node().Name
			st, want := ours.Filter(w.t.Context(), mine, pod, info), w.theirs.Filter(w.t.Context(), other, pod, info)
			if w.differ(pod, "Filter of "+name, st, want) {
				return
			}
			if !st.IsSuccess() {
				continue
			}
			chosen, feasible = name, append(feasible, info)
			var score int64
			if ours.PreScore(w.t.Context(), mine, pod, w.infos).IsSuccess() {
				score, st = ours.Score(w.t.Context(), mine, pod, info)
			}
			wanted, want := w.theirs.Score(w.t.Context(), other, pod, info)
			if w.differ(pod, "Score of "+name, st, want) {
				return
			}
			if score != wanted {
				w.complain(pod, "Score of %s: %d, want %d", name, score, wanted)
				return
			}
		}
		if chosen == "" {
			refused++
			continue
		}
		placed++
		if !w.weigh(pod, mine, other, feasible) {
			return
		}
		if st := ours.Reserve(w.t.Context(), mine, pod, chosen); !st.IsSuccess() {
			w.complain(pod, "Reserve on %s: %v", chosen, st.AsError())
		}
	}
	return placed, refused
}

func (w *world) differ(pod *corev1.Pod, what string, got, want *fwk.Status) bool {
	w.t.Helper()
	if got.Code() == want.Code() && got.Message() == want.Message() {
		return false
	}
	w.complain(pod, "%s: %v %q, want %v %q", what, got.Code(), got.Message(), want.Code(), want.Message())
	return true
}

func (w *world) complain(pod *corev1.Pod, format string, args ...any) {
	w.t.Helper()
	var text strings.Builder
	for _, o := range append(w.objects, pod) {
		data, err := yaml.Marshal(o)
		if err != nil {
			w.t.Fatal(err)
		}
		fmt.Fprintf(&text, "---\n%s", data)
	}
	w.t.Errorf("seed %d, %s: "+format+"\n%s", append(append([]any{w.seed, pod.Name}, args...), text.String())...)
}

// fill makes what there is.
func (w *world) fill() {
	several := w.in(30)
	for i := range 3 + w.IntN(4) {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i), Labels: map[string]string{"rack": pick(w.dice, "1", "2")}},
			Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{}}}
		if w.in(20) {
			n.Status.Allocatable["example.com/gpu"] = resource.MustParse(pick(w.dice, "0", "2"))
		}
		w.nodes = append(w.nodes, n)
		if w.in(85) {
			s := w.slice(n.Name, several)
			s.Spec.NodeName = &n.Name
			w.objects = append(w.objects, s)
		}
	}
	if w.in(40) {
		s := w.slice("net", several)
		s.Spec.NodeSelector = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{
				{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "rack", Operator: corev1.NodeSelectorOpIn, Values: []string{"1"}}}}}}
		w.objects = append(w.objects, s)
	}
	if w.in(30) {
		s := w.slice("each", several)
		s.Spec.PerDeviceNodeSelection = new(true)
		for i := range s.Spec.Devices {
			switch d := &s.Spec.Devices[i]; w.IntN(3) {
			case 0:
				d.AllNodes = new(true)
			case 1:
				d.NodeName = new(fmt.Sprint("n", w.IntN(4)))
			default:
				d.NodeSelector = &corev1.NodeSelector{
					NodeSelectorTerms: []corev1.NodeSelectorTerm{
						{MatchExpressions: []corev1.NodeSelectorRequirement{
							{Key: "rack", Operator: corev1.NodeSelectorOpIn, Values: []string{pick(w.dice, "1", "2")}}}}}}
			}
		}
		w.objects = append(w.objects, s)
	}
	if w.in(10) {
		s := w.slice("all", several)
		s.Spec.AllNodes = new(true)
		w.objects = append(w.objects, s)
	}
	class := func(name string, expressions ...string) *resourcev1.DeviceClass {
		c := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, e := range expressions {
			c.Spec.Selectors = append(c.Spec.Selectors, resourcev1.DeviceSelector{CEL: &resourcev1.CELDeviceSelector{Expression: e}})
		}
		w.objects = append(w.objects, c)
		return c
	}
	expressions := []string{"device.driver == 'd.example.com'"}
	switch w.IntN(10) {
	case 0, 1, 2:
		expressions = nil
	case 3:
		expressions = append(expressions, "device.allowMultipleAllocations")
	case 4:
		expressions = append(expressions, "device.capacity['d.example.com'].memory.isGreaterThan(quantity('4Gi'))")
	}
	gpu := class("gpu", expressions...)
	if w.in(60) {
		gpu.Spec.ExtendedResourceName = new("example.com/gpu")
	}
	class("big", "device.attributes['d.example.com'].model == 'big'")
	if w.in(5) {
		class("bad", "device.attributes['d.example.com'].missing == 'x'")
	}
	if w.in(20) {
		w.objects = append(w.objects, &resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "rule"},
			Spec: resourcev1.DeviceTaintRuleSpec{
				DeviceSelector: &resourcev1.DeviceTaintSelector{Pool: new(fmt.Sprint("n", w.IntN(3)))},
				Taint: resourcev1.DeviceTaint{Key: "broken",
					Effect: pick(w.dice, resourcev1.DeviceTaintEffectNoSchedule, resourcev1.DeviceTaintEffectNoExecute)},
			}})
	}
	const claims = 9
	for i := range claims {
		if w.in(92) {
			w.objects = append(w.objects, w.claim(i, several))
		}
	}
	for i := range 8 {
		name := fmt.Sprint("p", i)
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}, {Name: "d"}}}}
		if w.in(80) {
			for j := range 1 + w.IntN(2) {
				c := corev1.PodResourceClaim{Name: fmt.Sprint("c", j), ResourceClaimName: new(fmt.Sprint("x", w.IntN(claims)))}
				if w.in(10) {
					c.ResourceClaimName, c.ResourceClaimTemplateName = nil, c.ResourceClaimName
					p.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: c.Name, ResourceClaimName: c.ResourceClaimTemplateName}}
				}
				p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, c)
			}
		}
		if w.in(25) {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"cpu": resource.MustParse("1"),
				corev1.ResourceName(pick(w.dice, "example.com/gpu", "example.com/none",
					resourcev1.ResourceDeviceClassPrefix+"big")): resource.MustParse(pick(w.dice, "0", "1", "1", "2"))}
		}
		if w.in(10) {
			p.Spec.Containers[1].Resources.Requests = corev1.ResourceList{"example.com/gpu": resource.MustParse("1")}
			p.Spec.InitContainers = []corev1.Container{{Name: "i",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"example.com/gpu": resource.MustParse("2")}}}}
		}
		w.pods = append(w.pods, p)
	}
}

func (w *world) slice(name string, several bool) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourcev1.ResourceSliceSpec{
		Driver: pick(w.dice, drive, drive, drive, "other.example.com"),
		Pool:   resourcev1.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
	}}
	for i := range 1 + w.IntN(4) {
		d := resourcev1.Device{
			Name: fmt.Sprint("dev-", i),
			Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
				"d.example.com/model": {StringValue: new(pick(w.dice, "big", "small"))}, "d.example.com/numa": {IntValue: new(int64(w.IntN(2)))},
			},
			Capacity: map[resourcev1.QualifiedName]resourcev1.DeviceCapacity{"memory": {Value: resource.MustParse(pick(w.dice, "4Gi", "8Gi"))}},
		}
		if w.in(15) {
			d.Taints = []resourcev1.DeviceTaint{{Key: "broken", Effect: resourcev1.DeviceTaintEffectNoSchedule}}
		}
		if several {
			d.AllowMultipleAllocations = new(w.in(60))
		}
		s.Spec.Devices = append(s.Spec.Devices, d)
	}
	return s
}

func (w *world) claim(i int, several bool) *resourcev1.ResourceClaim {
	name := fmt.Sprint("x", i)
	c := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name),
		ResourceVersion: "1"}}
	class := func() string {
		if w.in(3) {
			return pick(w.dice, "none", "bad")
		}
		return pick(w.dice, "gpu", "gpu", "big")
	}
	for j := range 1 + w.IntN(5)/4 {
		r := resourcev1.DeviceRequest{Name: fmt.Sprint("r", j)}
		if w.in(25) {
			for k := range 1 + w.IntN(3) {
				r.FirstAvailable = append(r.FirstAvailable, resourcev1.DeviceSubRequest{
					Name: fmt.Sprint("s", k), DeviceClassName: class(), AllocationMode: resourcev1.DeviceAllocationModeExactCount,
					Count: int64(1 + w.IntN(2)),
				})
			}
		} else {
			r.Exactly = &resourcev1.ExactDeviceRequest{DeviceClassName: class(), AllocationMode: resourcev1.DeviceAllocationModeExactCount,
				Count: int64(1 + w.IntN(2))}
			if w.in(10) {
				r.Exactly.AllocationMode, r.Exactly.Count = resourcev1.DeviceAllocationModeAll, 0
			}
			if w.in(10) {
				r.Exactly.AdminAccess = new(true)
			}
			if w.in(20) {
				r.Exactly.Tolerations = []resourcev1.DeviceToleration{{Operator: resourcev1.DeviceTolerationOpExists}}
			}
			if w.in(20) {
				r.Exactly.Selectors = []resourcev1.DeviceSelector{
					{CEL: &resourcev1.CELDeviceSelector{Expression: "device.attributes['d.example.com'].numa == 1"}}}
			}
			if several && w.in(50) {
				r.Exactly.Capacity = &resourcev1.CapacityRequirements{
					Requests: map[resourcev1.QualifiedName]resource.Quantity{"memory": resource.MustParse(pick(w.dice, "1Gi", "3Gi"))}}
			}
		}
		c.Spec.Devices.Requests = append(c.Spec.Devices.Requests, r)
	}
	if w.in(15) {
		c.Spec.Devices.Constraints = []resourcev1.DeviceConstraint{{MatchAttribute: new(resourcev1.FullyQualifiedName("d.example.com/numa"))}}
	}
	if w.in(20) {
		c.Status.Allocation = &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{
				Request: "r0", Driver: drive, Pool: fmt.Sprint("n", w.IntN(3)), Device: fmt.Sprint("dev-", w.IntN(3)),
			}}}}
		r := &c.Status.Allocation.Devices.Results[0]
		if w.in(70) {
			c.Status.Allocation.NodeSelector = &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name", Operator: corev1.NodeSelectorOpIn, Values: []string{r.Pool}}}}}}
		}
		if w.in(20) {
			r.BindingConditions, r.BindingFailureConditions = []string{"ready"}, []string{"broken"}
			c.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: time.Now().Add(-time.Duration(w.IntN(2)) * time.Hour)}
			if w.in(70) {
				c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: drive, Pool: r.Pool, Device: r.Device,
					Conditions: []metav1.Condition{{Type: pick(w.dice, "ready", "broken"), Status: metav1.ConditionTrue, Reason: "Because"}}}}
			}
		}
	}
	if w.in(4) {
		c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: time.Now()}, []string{resourcev1.Finalizer}
	}
	return c
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package dynamicresources is the plug-in that allocates devices for the ResourceClaims of pods (KEP-4381): a pod fits a node where all of
// its claims can get devices, or that can reach the devices which they have already.
//
// k8s.io/dynamic-resource-allocation/structured computes a claim's allocation for one node at a time, from the ResourceSlices, the
// DeviceClasses and the allocations of other claims. The plug-in reserves the allocation for the selected node (in flight) and writes it to
// the claim before the pod is bound, together with the pod in reservedFor; then it waits for devices that must become ready first (binding
// conditions, KEP-5007). It deallocates a claim whose devices its pods cannot reach when no pod uses it.
//
// Worked example: two nodes with one device each, pods p and q with a claim each. For p, both nodes fit; the scheduler selects one, and its
// device is in flight. For q, decided meanwhile, that device is taken, so only the other node fits. A third pod fits nowhere: "cannot
// allocate all claims". A client deletes p before it is bound: its flight ends, and the scheduler tries the third pod again.
//
// A pod's extended resources may be backed by devices too (KEP-5004, extended.go): the plug-in creates a claim for them when the pod is
// bound.
package dynamicresources

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/config"
	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
)

// Name is the plug-in's name.
const Name = "DynamicResources"

const stateKey fwk.StateKey = Name

// New returns the plug-in.
func New(_ context.Context, args runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	a, err := config.ArgsFor[*configv1.DynamicResourcesArgs](Name, args)
	if err != nil {
		return nil, err
	}
	p := &plugin{
		handle: h, devices: h.SharedDRAManager(), bindingTimeout: configv1.DynamicResourcesBindingTimeoutDefault,
		// The compiler takes a while to create, and clusters without claims need none.
		expressions: sync.OnceValue(func() *cel.Cache { return cel.NewCache(10, cel.Features{EnableConsumableCapacity: true}) }),
	}
	if m, ok := h.(interface{ Metrics() *metrics.Metrics }); ok {
		p.metrics = m.Metrics()
	}
	if a.FilterTimeout != nil {
		p.filterTimeout = a.FilterTimeout.Duration
	}
	if a.BindingTimeout != nil {
		p.bindingTimeout = a.BindingTimeout.Duration
	}
	return p, nil
}

type plugin struct {
	handle         fwk.Handle
	devices        fwk.SharedDRAManager // nil: no claims are supported
	filterTimeout  time.Duration        // 0: no timeout
	bindingTimeout time.Duration
	expressions    func() *cel.Cache
	metrics        *metrics.Metrics // nil: nothing is measured
}

// features are the allocator's features that are enabled by default.
func features() structured.Features {
	return structured.Features{
		AdminAccess: true, PrioritizedList: true, PartitionableDevices: true, DeviceTaints: true, DeviceBindingAndStatus: true,
		ConsumableCapacity: true, FractionalCapacityRange: true,
	}
}

func (*plugin) Name() string { return Name }

// SignPod signs pods that need no devices; this plug-in treats all of those alike.
func (p *plugin) SignPod(_ context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	switch {
	case len(pod.Spec.ResourceClaims) > 0:
		return nil, fwk.NewStatus(fwk.Unschedulable, "pods with dra resource claims are not signable") // upstream's words
	case p.devices != nil && asksForExtended(pod) && p.backs(resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})):
		return nil, fwk.NewStatus(fwk.Unschedulable, "signature disabled when dra extended resources are used in the cluster") // upstream's words
	}
	return nil, nil
}

// state is the state of one pod with claims. Filter may run concurrently for several nodes.
type state struct {
	claims    []*resourcev1.ResourceClaim // shared until written; the one for extended resources comes last
	extended  bool                        // whether the last claim is for extended resources
	initial   types.UID                   // of the claim for extended resources, before it is created
	scalars   map[corev1.ResourceName]int64
	there     []*nodeaffinity.NodeSelector // by claim: the nodes that reach its devices; nil: all, or it has none
	reserved  []*resourcev1.AllocationResult
	allocator structured.Allocator // nil: all claims have devices

	mu          sync.Mutex
	on          map[string]*placement // by node
	unavailable sets.Set[int]         // claims that some node cannot reach
}

// placement is the result for one node.
type placement struct {
	results  []resourcev1.AllocationResult // for the claims without devices, in order
	extended *resourcev1.ResourceClaim
	mappings []corev1.ContainerExtendedResourceRequest
}

// Clone returns the state itself: preemption frees no devices.
func (s *state) Clone() fwk.StateData { return s }

// forExtended returns the claim for extended resources, or nil.
func (s *state) forExtended() *resourcev1.ResourceClaim {
	if !s.extended {
		return nil
	}
	return s.claims[len(s.claims)-1]
}

// own returns the claims that the pod names.
func (s *state) own() []*resourcev1.ResourceClaim {
	if s.extended {
		return s.claims[:len(s.claims)-1]
	}
	return s.claims
}

// read returns the pod's state; nil for pods without claims.
func read(cycle fwk.CycleState) *state {
	data, err := cycle.Read(stateKey)
	if err != nil {
		return nil
	}
	s, _ := data.(*state)
	return s
}

func never(why string) *fwk.Status { return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, why) }

// PreEnqueue holds back pods whose claims do not exist.
func (p *plugin) PreEnqueue(_ context.Context, pod *corev1.Pod) *fwk.Status {
	if p.devices == nil {
		return nil
	}
	if _, err := p.claimsOf(pod); err != nil {
		return never(err.Error())
	}
	return nil
}

// claimsOf returns the pod's claims; the error is why one of them is not available. The messages are upstream's.
func (p *plugin) claimsOf(pod *corev1.Pod) (claims []*resourcev1.ResourceClaim, err error) {
	for i := range pod.Spec.ResourceClaims {
		name, own, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue // the pod turned out to need none
		}
		claim, err := p.devices.ResourceClaims().Get(pod.Namespace, *name)
		switch {
		case err != nil:
			return nil, err
		case claim.DeletionTimestamp != nil:
			return nil, fmt.Errorf("resourceclaim %q is being deleted", claim.Name)
		case own:
			if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
				return nil, err
			}
		}
		claims = append(claims, claim)
	}
	return claims, nil
}

// PreFilter finds out what the pod's claims have and need, and skips pods without claims.
func (p *plugin) PreFilter(ctx context.Context, cycle fwk.CycleState, pod *corev1.Pod, _ []fwk.NodeInfo) (*fwk.PreFilterResult,
	*fwk.Status) {
	if p.devices == nil || len(pod.Spec.ResourceClaims) == 0 && !asksForExtended(pod) {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	s := &state{on: map[string]*placement{}}
	var err error
	if s.claims, err = p.claimsOf(pod); err != nil {
		return nil, never(err.Error())
	}
	if err := p.addExtended(pod, s); err != nil {
		return nil, fwk.AsStatus(err)
	}
	if len(s.claims) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	s.there, s.reserved = make([]*nodeaffinity.NodeSelector, len(s.claims)), make([]*resourcev1.AllocationResult, len(s.claims))
	needs := false
	for i, claim := range s.claims {
		if a := claim.Status.Allocation; a != nil {
			if !resourceclaim.CanBeReserved(claim) && !resourceclaim.IsReservedForPod(pod, claim, false) {
				return nil, never("resourceclaim in use") // upstream's words
			}
			if a.NodeSelector != nil {
				if s.there[i], err = nodeaffinity.NewNodeSelector(a.NodeSelector); err != nil {
					return nil, fwk.AsStatus(err)
				}
			}
			continue
		}
		needs = true
		if p.devices.ResourceClaims().GetPendingAllocation(claim.UID) != nil {
			return nil, never(fmt.Sprintf("resource claim %s is in the process of being allocated", klog.KObj(claim))) // upstream's words
		}
		if claim == s.forExtended() {
			continue // its requests differ by node
		}
		if st := p.checkClasses(claim); !st.IsSuccess() {
			return nil, st
		}
	}
	if needs {
		if s.allocator, err = p.allocator(ctx); err != nil {
			return nil, fwk.AsStatus(err)
		}
	}
	cycle.Write(stateKey, s)
	return nil, nil
}

// PreFilterExtensions returns nil: other pods have no effect.
func (*plugin) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// allocator returns an allocator over the current devices and allocations. They do not change within one cycle.
func (p *plugin) allocator(ctx context.Context) (structured.Allocator, error) {
	taken, err := p.devices.ResourceClaims().GatherAllocatedState()
	if err == nil && taken == nil {
		err = errors.New("nil allocated state")
	}
	if err != nil {
		return nil, fmt.Errorf("gather allocation state: %w", err)
	}
	slices, err := p.devices.ResourceSlices().ListWithDeviceTaintRules()
	if err != nil {
		return nil, err
	}
	return structured.NewAllocator(ctx, features(), *taken, p.devices.DeviceClasses(), slices, p.expressions())
}

// checkClasses rejects claims whose classes do not exist. The messages are upstream's.
func (p *plugin) checkClasses(claim *resourcev1.ResourceClaim) *fwk.Status {
	for i := range claim.Spec.Devices.Requests {
		r := &claim.Spec.Devices.Requests[i]
		switch {
		case r.Exactly != nil:
			if st := p.checkClass(r.Exactly.DeviceClassName, r.Name); !st.IsSuccess() {
				return st
			}
		case len(r.FirstAvailable) > 0:
			for _, sub := range r.FirstAvailable {
				if st := p.checkClass(sub.DeviceClassName, strings.Join([]string{r.Name, sub.Name}, "/")); !st.IsSuccess() {
					return st
				}
			}
		default:
			return never(fmt.Sprintf("resource claim %s, request %s: unknown request type", klog.KObj(claim), r.Name))
		}
	}
	return nil
}

func (p *plugin) checkClass(class, request string) *fwk.Status {
	if class == "" {
		return fwk.AsStatus(fmt.Errorf("request %s: unsupported request type", request)) // upstream's words
	}
	if _, err := p.devices.DeviceClasses().Get(class); apierrors.IsNotFound(err) {
		return never(fmt.Sprintf("request %s: device class %s does not exist", request, class)) // upstream's words
	}
	return nil
}

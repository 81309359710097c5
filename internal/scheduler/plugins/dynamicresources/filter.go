// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// optionalOperations is the feature that a node declares if its kubelet supports devices that need no preparation.
const optionalOperations = "DRAOptionalNodeOperations"

// Filter rejects nodes that cannot reach the devices which claims have, and nodes where some other claim can get none.
func (p *plugin) Filter(ctx context.Context, cycle fwk.CycleState, pod *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	s := read(cycle)
	if s == nil {
		return nil
	}
	node := info.Node()
	extended, mappings, st := p.extendedOn(s, pod, info)
	if !st.IsSuccess() {
		return st
	}
	if extended == nil && len(s.own()) == 0 {
		return nil // the node has the extended resources without a claim
	}
	var unavailable []int
	for i, claim := range s.claims {
		if !p.reachable(s, i, claim, node) {
			unavailable = append(unavailable, i)
		}
	}
	found := &placement{extended: extended, mappings: mappings}
	if s.allocator != nil {
		if st := p.allocate(ctx, s, node, found); !st.IsSuccess() {
			return st
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(unavailable) > 0 {
		if s.unavailable == nil {
			s.unavailable = sets.New[int]()
		}
		s.unavailable.Insert(unavailable...)
		return never("resourceclaim not available on the node") // upstream's words
	}
	if s.allocator != nil {
		s.on[node.Name] = found
	}
	return nil
}

// reachable reports whether the node can use the devices that a claim has, if it has any.
func (p *plugin) reachable(s *state, i int, claim *resourcev1.ResourceClaim, node *corev1.Node) bool {
	a := claim.Status.Allocation
	if a == nil {
		return true
	}
	if s.there[i] != nil && !s.there[i].Match(node) {
		return false
	}
	if slices.ContainsFunc(a.Devices.Results, func(r resourcev1.DeviceRequestAllocationResult) bool {
		return len(
			r.SkipNodeOperations) > 0
	}) &&
		!slices.Contains(node.Status.DeclaredFeatures, optionalOperations) {
		return false
	}
	ready, err := readiness(claim)
	return err == nil && (ready || !p.late(claim))
}

// allocate computes the allocations of the claims without devices for the node. The messages are upstream's.
func (p *plugin) allocate(ctx context.Context, s *state, node *corev1.Node, found *placement) *fwk.Status {
	limited := ctx
	if p.filterTimeout > 0 {
		c, cancel := context.WithTimeout(ctx, p.filterTimeout)
		defer cancel()
		limited = c
	}
	var need []*resourcev1.ResourceClaim
	for _, claim := range s.claims {
		if claim.Status.Allocation != nil {
			continue
		}
		if claim == s.forExtended() {
			if claim = found.extended; claim == nil {
				continue // the node has the resources without it
			}
		}
		need = append(need, claim)
	}
	results, err := s.allocator.Allocate(limited, node, need)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fwk.AsStatus(fmt.Errorf("node %s: timed out trying to allocate devices", node.Name))
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return never(err.Error())
	case ctx.Err() != nil:
		return never(fmt.Sprintf("asked by caller to stop allocating devices: %v", context.Cause(ctx)))
	case err != nil:
		return fwk.AsStatus(err)
	case len(results) != len(need):
		return never("cannot allocate all claims")
	}
	found.results = results
	return nil
}

// PostFilter deallocates a claim that no other pod uses and that some node could not reach: with another allocation the pod may fit.
func (p *plugin) PostFilter(ctx context.Context, cycle fwk.CycleState, pod *corev1.Pod, _ fwk.NodeToStatusReader) (*fwk.PostFilterResult,
	*fwk.Status) {
	s := read(cycle)
	if s == nil {
		return nil, fwk.NewStatus(fwk.Unschedulable)
	}
	extended := s.forExtended()
	made := extended != nil && extended.ResourceVersion != ""
	for i := range s.unavailable {
		claim := s.claims[i]
		if claim == extended {
			if made {
				break
			}
			continue
		}
		if r := claim.Status.ReservedFor; len(r) > 1 || len(r) == 1 && r[0].UID != pod.UID {
			continue
		}
		claim = claim.DeepCopy()
		claim.Status.ReservedFor, claim.Status.Allocation, claim.Status.Devices = nil, nil, nil
		if _, err := p.handle.ClientSet().ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, claim,
			metav1.UpdateOptions{}); err != nil {
			return nil, fwk.AsStatus(err)
		}
		return nil, fwk.NewStatus(fwk.Unschedulable, "deallocation of ResourceClaim completed") // upstream's words
	}
	if made { // created by an earlier attempt that failed
		if err := p.deleteClaim(ctx, extended); err != nil {
			return nil, fwk.AsStatus(err)
		}
		return nil, fwk.NewStatus(fwk.Unschedulable, "deletion of ResourceClaim completed") // upstream's words
	}
	return nil, fwk.NewStatus(fwk.Unschedulable)
}

// PodGroupPostFilter does nothing: the scheduler has no pod groups (docs/scheduling.md). A configuration may name the plug-in at that
// point.
func (*plugin) PodGroupPostFilter(context.Context, fwk.PodGroupCycleState, fwk.PodGroupInfo,
	fwk.PodGroupSchedulingFunc) (*fwk.PodGroupPostFilterResult, *fwk.Status) {
	return nil, fwk.NewStatus(fwk.Unschedulable)
}

// PreScore skips pods without a choice among alternative requests.
func (*plugin) PreScore(_ context.Context, cycle fwk.CycleState, _ *corev1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	s := read(cycle)
	if s == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	for _, claim := range s.own() {
		for i := range claim.Spec.Devices.Requests {
			if len(claim.Spec.Devices.Requests[i].FirstAvailable) > 0 {
				return nil
			}
		}
	}
	return fwk.NewStatus(fwk.Skip) // all nodes would have the same score
}

// Score is higher for nodes where claims get earlier alternatives of their requests (KEP-4816).
func (*plugin) Score(_ context.Context, cycle fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) (int64, *fwk.Status) {
	s := read(cycle)
	if s == nil || s.on[info.Node().Name] == nil {
		return 0, nil
	}
	results := s.on[info.Node().Name].results
	var score int64
	for _, claim := range s.own() { // the one for extended resources, which comes last, has no alternatives
		a := claim.Status.Allocation
		if a == nil {
			if len(results) == 0 {
				return 0, fwk.AsStatus(errors.New("fewer allocations than claims that need one"))
			}
			a, results = &results[0], results[1:]
		}
		chosen := sets.New[string]()
		for i := range a.Devices.Results {
			chosen.Insert(a.Devices.Results[i].Request)
		}
		for i := range claim.Spec.Devices.Requests {
			r := &claim.Spec.Devices.Requests[i]
			for j := range r.FirstAvailable {
				if chosen.Has(resourceclaim.CreateSubRequestRef(r.Name, r.FirstAvailable[j].Name)) {
					score += int64(resourcev1.FirstAvailableDeviceRequestMaxSize - j)
				}
			}
		}
	}
	return score, nil
}

// ScoreExtensions returns the plug-in, which normalises scores.
func (p *plugin) ScoreExtensions() fwk.ScoreExtensions { return p }

// Scale scales scores to 0 to 100.
func (*plugin) Scale(scores []int64) { profile.Scale(scores) }

// NormalizeScore scales the best score to 100.
func (p *plugin) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	profile.Normalize(scores, p)
	return nil
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// writing is the timeout for the writes to one claim.
const writing = time.Minute

// Reserve assumes the allocations that Filter found for the node.
func (p *plugin) Reserve(_ context.Context, cycle fwk.CycleState, _ *corev1.Pod, node string) *fwk.Status {
	s := read(cycle)
	if s == nil || s.allocator == nil {
		return nil
	}
	found := s.on[node]
	if found == nil {
		if !slices.ContainsFunc(s.own(), func(c *resourcev1.ResourceClaim) bool { return c.Status.Allocation == nil }) {
			return nil // the node has the extended resources without a claim
		}
		return fwk.AsStatus(errors.New("claim allocation not found for node")) // upstream's words
	}
	results := found.results
	for i, claim := range s.claims {
		if claim.Status.Allocation != nil {
			continue
		}
		if claim == s.forExtended() {
			if claim = found.extended; claim == nil {
				continue
			}
		}
		if len(results) == 0 {
			return fwk.AsStatus(errors.New("fewer allocations than claims that need one"))
		}
		allocation := &results[0]
		results = results[1:]
		claim = claim.DeepCopy()
		if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
			claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
		}
		claim.Status.Allocation = allocation
		if err := p.devices.ResourceClaims().SignalClaimPendingAllocation(claim.UID, claim); err != nil {
			return fwk.AsStatus(fmt.Errorf("internal error, couldn't signal allocation for claim %s: %w", claim.Name, err)) // upstream's words
		}
		s.reserved[i] = allocation
	}
	return nil
}

// Unreserve undoes Reserve: it frees devices that were not written to a claim, and removes the pod from the claims' reservedFor.
func (p *plugin) Unreserve(ctx context.Context, cycle fwk.CycleState, pod *corev1.Pod, _ string) {
	s := read(cycle)
	if s == nil {
		return
	}
	for i, claim := range s.claims {
		if claim == s.forExtended() {
			p.unreserveExtended(ctx, s, i)
			continue
		}
		if s.reserved[i] != nil {
			p.devices.ResourceClaims().MaybeRemoveClaimPendingAllocation(claim.UID, false)
			s.reserved[i] = nil
		}
		if claim.Status.Allocation == nil || !resourceclaim.IsReservedForPod(pod, claim, false) {
			continue
		}
		patch := fmt.Sprintf(`{"metadata": {"uid": %q}, "status": { "reservedFor": [ {"$patch": "delete", "uid": %q} ] }}`, claim.UID, pod.UID)
		_, err := p.handle.ClientSet().ResourceV1().ResourceClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType,
			[]byte(patch), metav1.PatchOptions{}, "status")
		if err != nil { // the pod's next attempt, or its deletion, does the same
			klog.FromContext(ctx).Error(err, "unreserve", "resourceclaim", klog.KObj(claim))
		}
	}
}

// PreBindPreFlight reports whether the pod has claims.
func (p *plugin) PreBindPreFlight(_ context.Context, cycle fwk.CycleState, _ *corev1.Pod, _ string) (*fwk.PreBindPreFlightResult,
	*fwk.Status) {
	result := &fwk.PreBindPreFlightResult{AllowParallel: true}
	if read(cycle) == nil {
		return result, fwk.NewStatus(fwk.Skip)
	}
	return result, nil
}

// PreBind writes the reservations, and waits until the devices are ready.
func (p *plugin) PreBind(ctx context.Context, cycle fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	s := read(cycle)
	if s == nil {
		return nil
	}
	for i, claim := range s.claims {
		if resourceclaim.IsReservedForPod(pod, claim, false) {
			continue
		}
		var err error
		if claim == s.forExtended() {
			err = p.bindExtended(ctx, s, i, pod, node)
		} else {
			err = p.bindClaim(ctx, s, i, pod)
		}
		if err != nil {
			return fwk.AsStatus(err)
		}
	}
	if !slices.ContainsFunc(s.claims, conditional) {
		return nil
	}
	p.handle.EventRecorder().WithLogger(klog.FromContext(ctx)).Eventf(pod, nil, corev1.EventTypeNormal, "BindingConditionsPending",
		"Scheduling",
		"waiting for binding conditions for device on node %s", node) // upstream's words
	began := time.Now()
	err := p.awaitDevices(ctx, s)
	p.awaited(s, err, time.Since(began))
	return fwk.AsStatus(err)
}

// bindClaim writes the allocation, if one was reserved, and the pod to a claim.
func (p *plugin) bindClaim(ctx context.Context, s *state, i int, pod *corev1.Pod) error {
	claim, err := p.write(ctx, s.claims[i], s.reserved[i], pod)
	if err != nil {
		return err
	}
	s.claims[i] = claim
	// This fails if the claim is deleted by now; then there is nothing to assume.
	_ = p.devices.ResourceClaims().AssumeClaimAfterAPICall(claim)
	if s.reserved[i] != nil {
		p.devices.ResourceClaims().MaybeRemoveClaimPendingAllocation(claim.UID, true)
		s.reserved[i] = nil
	}
	return nil
}

// write writes an allocation, if there is one, and the pod in reservedFor to the claim. Other clients may change the claim concurrently; so
// each attempt checks again whether the claim is still available. Cancelling the pod does not cancel a write in flight: otherwise it would
// be unknown whether the devices are taken. The messages are upstream's.
func (p *plugin) write(ctx context.Context, claim *resourcev1.ResourceClaim, allocation *resourcev1.AllocationResult,
	pod *corev1.Pod) (*resourcev1.ResourceClaim, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), writing)
	defer cancel()
	client := p.handle.ClientSet().ResourceV1().ResourceClaims(claim.Namespace)
	uid, again := claim.UID, false
	claim = claim.DeepCopy()
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if again {
			newest, err := client.Get(ctx, claim.Name, metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("get updated claim %s after conflict: %w", klog.KObj(claim), err)
			}
			claim = newest
		}
		again = true
		if claim.DeletionTimestamp != nil || claim.UID != uid {
			return fmt.Errorf("claim %s got deleted in the meantime", klog.KObj(claim))
		}
		if allocation != nil {
			if claim.Status.Allocation != nil {
				return fmt.Errorf("claim %s got allocated elsewhere in the meantime", klog.KObj(claim))
			}
			if !slices.Contains(claim.Finalizers, resourcev1.Finalizer) {
				claim.Finalizers = append(claim.Finalizers, resourcev1.Finalizer)
				updated, err := client.Update(ctx, claim, metav1.UpdateOptions{})
				if err != nil {
					return fmt.Errorf("add finalizer to claim %s: %w", klog.KObj(claim), err)
				}
				claim = updated
			}
			claim.Status.Allocation = allocation.DeepCopy()
		}
		if claim.Status.Allocation == nil {
			return fmt.Errorf("claim %s got deallocated elsewhere in the meantime", klog.KObj(claim))
		}
		if !resourceclaim.IsReservedForPod(pod, claim, false) {
			claim.Status.ReservedFor = append(claim.Status.ReservedFor,
				resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
		}
		if claim.Status.Allocation.AllocationTimestamp == nil {
			claim.Status.Allocation.AllocationTimestamp = &metav1.Time{Time: time.Now()}
		}
		updated, err := client.UpdateStatus(ctx, claim, metav1.UpdateOptions{})
		switch {
		case err != nil && allocation != nil:
			return fmt.Errorf("add allocation and reservation to claim %s: %w", klog.KObj(claim), err)
		case err != nil:
			return fmt.Errorf("add reservation to claim %s: %w", klog.KObj(claim), err)
		}
		claim = updated
		return nil
	})
	return claim, err
}

// patchPod patches the pod's status.
func (p *plugin) patchPod(ctx context.Context, pod *corev1.Pod, status map[string]any) error {
	data, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID}, "status": status})
	if err != nil {
		return fmt.Errorf("encode status patch: %w", err)
	}
	_, err = p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, data, metav1.PatchOptions{},
		"status")
	return err
}

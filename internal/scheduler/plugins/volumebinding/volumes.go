// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/component-helpers/storage/volume"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/claims"
)

// placement is the plan for a pod's waiting claims on a node.
type placement struct {
	bindings []binding
	made     []provision
}

// binding binds an existing volume to a claim.
type binding struct {
	pv    *corev1.PersistentVolume
	claim *corev1.PersistentVolumeClaim
}

// provision lets a driver create a volume for a claim.
type provision struct {
	claim    *corev1.PersistentVolumeClaim
	capacity *storagev1.CSIStorageCapacity // the capacity that the volume would use, if the driver reports it
}

func bound(claim *corev1.PersistentVolumeClaim) bool {
	_, completed := claim.Annotations[volume.AnnBindCompleted]
	return claim.Spec.VolumeName != "" && completed
}

// sort reads the pod's claims. unbound reports that a claim whose class binds immediately is not bound.
func (p *plugin) sort(pod *corev1.Pod) (s *state, unbound bool, err error) {
	s = &state{free: map[string][]*corev1.PersistentVolume{}, on: map[string]*placement{}}
	for name := range claims.Of(pod) {
		claim, err := p.claims.get(pod.Namespace + "/" + name)
		if err != nil {
			return nil, false, fmt.Errorf("error getting PVC %q: %w", pod.Namespace+"/"+name, err) // upstream's words
		}
		if bound(claim) {
			s.bound = append(s.bound, claim)
			continue
		}
		waits, err := volume.IsDelayBindingMode(claim, p.classes)
		if err != nil {
			return nil, false, err
		}
		if !waits || claim.Spec.VolumeName != "" {
			unbound = true
			continue
		}
		s.waiting = append(s.waiting, claim)
		class := volume.GetPersistentVolumeClaimClass(claim)
		if _, ok := s.free[class]; !ok {
			if s.free[class], err = p.volumes.indexed(byClass, class); err != nil {
				return nil, false, err
			}
		}
	}
	slices.SortStableFunc(s.waiting, func(a, b *corev1.PersistentVolumeClaim) int {
		x, y := a.Spec.Resources.Requests[corev1.ResourceStorage], b.Spec.Resources.Requests[corev1.ResourceStorage]
		return x.Cmp(y)
	})
	return s, unbound, nil
}

// Filter rejects nodes where the pod's volumes are not and cannot become available.
func (p *plugin) Filter(_ context.Context, cycle fwk.CycleState, _ *corev1.Pod, info fwk.NodeInfo) *fwk.Status {
	s, err := read(cycle)
	if err != nil {
		return fwk.AsStatus(err)
	}
	there, why, err := p.findVolumes(s, info.Node())
	switch {
	case err != nil:
		return fwk.AsStatus(err)
	case len(why) > 0:
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, why...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on[info.Node().Name] = there
	return nil
}

// findVolumes finds volumes for the claims on a node, or why there are none; the messages are upstream's.
func (p *plugin) findVolumes(s *state, node *corev1.Node) (there *placement, why []string, err error) {
	reach, exist, err := p.reach(s.bound, node)
	if err != nil {
		return nil, nil, err
	}
	if !reach {
		why = append(why, "node(s) didn't match PersistentVolume's node affinity")
	}
	there, possible, room, err := p.match(s, node)
	if err != nil {
		return nil, nil, err
	}
	if !possible {
		why = append(why, "node(s) didn't find available persistent volumes to bind")
	}
	if !room {
		why = append(why, "node(s) did not have enough free storage")
	}
	if !exist {
		why = append(why, "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)")
	}
	return there, why, nil
}

// reach reports whether the bound volumes can be reached from a node, and exist.
func (p *plugin) reach(all []*corev1.PersistentVolumeClaim, node *corev1.Node) (can, exist bool, err error) {
	for _, claim := range all {
		pv, err := p.volumes.get(claim.Spec.VolumeName)
		if apierrors.IsNotFound(err) {
			return true, false, nil
		}
		if err != nil {
			return true, false, err
		}
		if err := p.reachable(pv, node); err != nil {
			if errors.As(err, new(unreachable)) {
				return false, true, nil
			}
			return false, true, err
		}
	}
	return true, true, nil
}

// unreachable is why a volume cannot be reached from a node.
type unreachable struct{ error }

// reachable returns an error if a volume cannot be reached from a node.
func (p *plugin) reachable(pv *corev1.PersistentVolume, node *corev1.Node) error {
	csi, err := p.csiNodes.Get(node.Name)
	if err != nil {
		csi = nil // the node reports no driver
	}
	if pv, err = p.migrated.Volume(pv, csi); err != nil {
		return err
	}
	if err := volume.CheckNodeAffinity(pv, node.Labels); err != nil {
		return unreachable{fmt.Errorf("pv %q node affinity doesn't match node %q: %w", pv.Name, node.Name, err)} // upstream's words
	}
	return nil
}

// match finds a volume for each waiting claim: an existing one, or one that a driver creates.
func (p *plugin) match(s *state, node *corev1.Node) (there *placement, possible, room bool, err error) {
	there = &placement{}
	var made []*corev1.PersistentVolumeClaim
	for _, claim := range s.waiting {
		if chosen, ok := claim.Annotations[volume.AnnSelectedNode]; ok {
			if chosen != node.Name {
				return there, false, true, nil // another node is already selected for its provisioning
			}
			made = append(made, claim)
		}
	}
	taken := map[string]*corev1.PersistentVolume{}
	for _, claim := range s.waiting {
		if _, ok := claim.Annotations[volume.AnnSelectedNode]; ok {
			continue
		}
		pv, err := volume.FindMatchingVolume(claim, s.free[volume.GetPersistentVolumeClaimClass(claim)], node, taken, true, true)
		if err != nil {
			return there, false, true, err
		}
		if pv == nil {
			made = append(made, claim)
			continue
		}
		taken[pv.Name] = pv
		there.bindings = append(there.bindings, binding{pv, claim})
	}
	possible, room, err = p.provide(there, made, node)
	return there, possible, room, err
}

// provide plans provisioning by drivers that support the node and have capacity.
func (p *plugin) provide(there *placement, made []*corev1.PersistentVolumeClaim, node *corev1.Node) (possible, room bool, err error) {
	for _, claim := range made {
		name := volume.GetPersistentVolumeClaimClass(claim)
		if name == "" {
			return false, false, fmt.Errorf("no class for claim %q", key(claim)) // upstream's words
		}
		class, err := p.classes.Get(name)
		if err != nil {
			return false, false, fmt.Errorf("failed to find storage class %q", name) // upstream's words
		}
		if cmp.Or(class.Provisioner, volume.NotSupportedProvisioner) == volume.NotSupportedProvisioner ||
			!allowed(class.AllowedTopologies, node.Labels) {
			return false, true, nil
		}
		capacity, enough, err := p.room(class, claim, node)
		if err != nil {
			return false, false, err
		}
		if !enough {
			return true, false, nil
		}
		there.made = append(there.made, provision{claim, capacity})
	}
	return true, true, nil
}

// allowed reports whether the labels match one of the terms, if there are any.
func allowed(terms []corev1.TopologySelectorTerm, labels map[string]string) bool {
	return len(terms) == 0 || slices.ContainsFunc(terms, func(t corev1.TopologySelectorTerm) bool {
		return len(t.MatchLabelExpressions) > 0 && !slices.ContainsFunc(t.MatchLabelExpressions,
			func(r corev1.TopologySelectorLabelRequirement) bool {
				value, ok := labels[r.Key]
				return !ok || !slices.Contains(r.Values, value)
			})
	})
}

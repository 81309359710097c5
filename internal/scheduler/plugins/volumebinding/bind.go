// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumebinding

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/storage/volume"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/objectversion"
	"github.com/mortise-dev/mortise/internal/scheduler/claims"
)

// Reserve assumes the bindings that Filter found, so that no other pod gets the volumes.
func (p *plugin) Reserve(_ context.Context, cycle fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	s, err := read(cycle)
	if err != nil {
		return fwk.AsStatus(err)
	}
	there := s.on[node]
	if there == nil || p.allBound(pod) {
		s.settled = true
		return nil
	}
	as := &placement{}
	for _, b := range there.bindings {
		pv, dirty, err := volume.GetBindVolumeToClaim(b.pv, b.claim)
		if err == nil && dirty {
			err = p.volumes.assume(pv)
		}
		if err != nil {
			p.restore(as)
			return fwk.AsStatus(err)
		}
		as.bindings = append(as.bindings, binding{pv, b.claim})
	}
	for _, m := range there.made {
		claim := m.claim.DeepCopy() // the informer owns the original
		metav1.SetMetaDataAnnotation(&claim.ObjectMeta, volume.AnnSelectedNode, node)
		if err := p.claims.assume(claim); err != nil {
			p.restore(as)
			return fwk.AsStatus(err)
		}
		as.made = append(as.made, provision{claim: claim})
	}
	s.on[node] = as
	return nil
}

func (p *plugin) allBound(pod *corev1.Pod) bool {
	for name := range claims.Of(pod) {
		if claim, err := p.claims.get(pod.Namespace + "/" + name); err != nil || !bound(claim) {
			return false
		}
	}
	return true
}

// Unreserve drops these assumptions.
func (p *plugin) Unreserve(_ context.Context, cycle fwk.CycleState, _ *corev1.Pod, node string) {
	if s, err := read(cycle); err == nil && s.on[node] != nil {
		p.restore(s.on[node])
	}
}

func (p *plugin) restore(as *placement) {
	for _, b := range as.bindings {
		p.volumes.restore(b.pv)
	}
	for _, m := range as.made {
		p.claims.restore(m.claim)
	}
}

// PreBindPreFlight reports whether there is anything to bind.
func (p *plugin) PreBindPreFlight(_ context.Context, cycle fwk.CycleState, _ *corev1.Pod, node string) (*fwk.PreBindPreFlightResult,
	*fwk.Status) {
	result := &fwk.PreBindPreFlightResult{AllowParallel: true}
	s, err := read(cycle)
	switch {
	case err != nil:
		return result, fwk.AsStatus(err)
	case s.settled:
		return result, fwk.NewStatus(fwk.Skip)
	case s.on[node] == nil:
		return result, fwk.AsStatus(fmt.Errorf("no pod volume found for node %q", node)) // upstream's words
	}
	return result, nil
}

// PreBind writes the bindings and the nodes for provisioning, and waits until all claims are bound.
func (p *plugin) PreBind(ctx context.Context, cycle fwk.CycleState, pod *corev1.Pod, node string) *fwk.Status {
	s, err := read(cycle)
	switch {
	case err != nil:
		return fwk.AsStatus(err)
	case s.settled:
		return nil
	case s.on[node] == nil:
		return fwk.AsStatus(fmt.Errorf("no pod volume found for node %q", node)) // upstream's words
	}
	if err := p.write(ctx, s.on[node]); err != nil {
		return fwk.AsStatus(err)
	}
	if err := p.await(ctx, s.on[node], node); err != nil {
		return fwk.AsStatus(fmt.Errorf("binding volumes: %w", err)) // upstream's words
	}
	return nil
}

// write writes the bindings to the API. It does not undo writes that succeeded: the volume controllers and provisioners correct them.
func (p *plugin) write(ctx context.Context, as *placement) error {
	for i, b := range as.bindings {
		pv, err := p.client.CoreV1().PersistentVolumes().Update(ctx, b.pv, metav1.UpdateOptions{})
		if err != nil {
			p.restore(&placement{bindings: as.bindings[i:], made: as.made})
			return err
		}
		as.bindings[i].pv = pv
	}
	for i, m := range as.made {
		claim, err := p.client.CoreV1().PersistentVolumeClaims(m.claim.Namespace).Update(ctx, m.claim, metav1.UpdateOptions{})
		if err != nil {
			p.restore(&placement{made: as.made[i:]})
			return err
		}
		as.made[i].claim = claim
	}
	return nil
}

// await returns when all claims are bound, or can no longer be.
func (p *plugin) await(ctx context.Context, as *placement, node string) error {
	late := time.NewTimer(p.timeout)
	defer late.Stop()
	for {
		changed := p.changed.wait()
		if done, err := p.followed(as, node); done || err != nil {
			return err
		}
		select {
		case <-changed:
		case <-late.C:
			return context.DeadlineExceeded
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// errLater reports that some events have not come yet.
var errLater = errors.New("later")

// followed reports whether all claims are bound. The errors are why they will not be bound as planned; the messages are upstream's.
func (p *plugin) followed(as *placement, node string) (bool, error) {
	n, err := p.nodes.Get(node)
	if err != nil {
		return false, fmt.Errorf("failed to get node %q: %w", node, err) // upstream's words
	}
	for _, b := range as.bindings {
		if err = p.bindingFollowed(b, n); err != nil {
			break
		}
	}
	for _, m := range as.made {
		if err == nil {
			err = p.provisionFollowed(m.claim, n)
		}
	}
	if errors.Is(err, errLater) {
		return false, nil
	}
	return err == nil, err
}

func (p *plugin) bindingFollowed(b binding, node *corev1.Node) error {
	pv, err := p.volumes.told(b.pv.Name)
	if err != nil {
		return fmt.Errorf("failed to check binding: %w", err) // upstream's words
	}
	claim, err := p.claims.told(key(b.claim))
	switch {
	case err != nil:
		return fmt.Errorf("failed to check binding: %w", err) // upstream's words
	case objectversion.Older(pv, b.pv):
		return errLater
	}
	if err := p.reachable(pv, node); err != nil {
		return err
	}
	if pv.Spec.ClaimRef == nil || pv.Spec.ClaimRef.UID == "" {
		return fmt.Errorf("ClaimRef got reset for pv %q", pv.Name)
	}
	if !bound(claim) {
		return errLater
	}
	return nil
}

func (p *plugin) provisionFollowed(asked *corev1.PersistentVolumeClaim, node *corev1.Node) error {
	claim, err := p.claims.told(key(asked))
	switch {
	case err != nil:
		return fmt.Errorf("failed to check provisioning pvc: %w", err) // upstream's words
	case objectversion.Older(claim, asked):
		return errLater
	case claim.Annotations == nil:
		return fmt.Errorf("selectedNode annotation reset for PVC %q", claim.Name)
	case claim.Annotations[volume.AnnSelectedNode] != node.Name:
		return fmt.Errorf("provisioning failed for PVC %q", claim.Name) // provisioners report this by removing the annotation
	}
	if claim.Spec.VolumeName != "" {
		pv, err := p.volumes.told(claim.Spec.VolumeName)
		switch {
		case apierrors.IsNotFound(err):
			return errLater
		case err != nil:
			return fmt.Errorf("failed to get pv %q from cache: %w", claim.Spec.VolumeName, err) // upstream's words
		}
		if err := p.reachable(pv, node); err != nil {
			return err
		}
	}
	if !bound(claim) {
		return errLater
	}
	return nil
}

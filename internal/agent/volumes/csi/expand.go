// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// The reasons of events. They are kubelet's.
const (
	resizeDone    = "FileSystemResizeSuccessful"
	resizeRefused = "FileSystemResizeFailed"
	resizeFailed  = "VolumeResizeFailed"
)

// needsExpansion reports whether the persistent volume is larger than the claim's status says.
func needsExpansion(v *volume) bool {
	if v.ephemeral || v.spec.Claim == nil {
		return false
	}
	have, ok := v.spec.Claim.Status.Capacity[corev1.ResourceStorage]
	want := v.spec.PersistentVolume.Spec.Capacity[corev1.ResourceStorage]
	return ok && have.Cmp(want) < 0
}

// expandAtMount expands a volume that was just published.
func (p *expander) expandAtMount(ctx context.Context, node csipb.NodeClient, v *volume, path string) error {
	if !needsExpansion(v) {
		return nil
	}
	if err := p.expand(ctx, node, v, path); err != nil {
		return v.failed(stepGrow, err)
	}
	return nil
}

// expandOnline expands a volume that containers use.
func (p *expander) expandOnline(ctx context.Context, v *volume) error {
	fail := func(err error) error {
		return &volumes.StepError{Step: stepOnline, Reason: resizeFailed, Err: named(v.driver, err)}
	}
	node, err := p.node(v)
	if err != nil {
		return err
	}
	if v.able, err = capabilities(ctx, node); err != nil {
		return fail(err)
	}
	path := filepath.Join(v.dir, "mount")
	if v.block {
		if path, err = filepath.EvalSymlinks(p.publishPath(v.name, v.pod.UID)); err != nil {
			return fail(err)
		}
	}
	if err := p.measured(v, "volume_fs_resize", func() error { return p.expand(ctx, node, v, path) }); err != nil {
		return fail(err)
	}
	return nil
}

// expand calls the driver, and updates the claim's status. A claim whose controller is not done is left alone.
func (p *expander) expand(ctx context.Context, node csipb.NodeClient, v *volume, path string) error {
	claim, pv := v.spec.Claim, v.spec.PersistentVolume
	size := pv.Spec.Capacity[corev1.ResourceStorage]
	state := claim.Status.AllocatedResourceStatuses[corev1.ResourceStorage]
	recovers := state != "" || claim.Status.AllocatedResources != nil
	if v.readOnly {
		p.tell(v, corev1.EventTypeWarning, resizeRefused,
			fmt.Sprintf("MountVolume.NodeExpandVolume failed for volume %q requested read-only file system", v.name))
		return nil
	}
	if recovers {
		if state != corev1.PersistentVolumeClaimNodeResizePending && state != corev1.PersistentVolumeClaimNodeResizeInProgress {
			return nil
		}
		size = claim.Status.AllocatedResources[corev1.ResourceStorage]
		var err error
		if claim, err = p.patchClaim(ctx, claim, func(c *corev1.PersistentVolumeClaim) {
			c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizeInProgress
		}); err != nil {
			return err
		}
	}
	if err := p.callExpand(ctx, node, v, path, size); err != nil {
		return p.notExpanded(ctx, v, claim, recovers, err)
	}
	p.tell(v, corev1.EventTypeNormal, resizeDone,
		fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", v.name, p.host.NodeName))
	_, err := p.patchClaim(ctx, claim, func(c *corev1.PersistentVolumeClaim) {
		c.Status.Capacity[corev1.ResourceStorage] = size
		delete(c.Status.AllocatedResourceStatuses, corev1.ResourceStorage)
		c.Status.Conditions = slices.DeleteFunc(c.Status.Conditions, isResize)
	})
	if err != nil {
		return fmt.Errorf("mountVolume.NodeExpandVolume update pvc status failed: %w", err) // upstream's words
	}
	return nil
}

// callExpand calls the driver. The messages are upstream's.
func (p *expander) callExpand(ctx context.Context, node csipb.NodeClient, v *volume, path string, size resource.Quantity) error {
	if !v.able.expand {
		return fmt.Errorf("NodeExpand is not supported by the CSI driver %s", v.driver)
	}
	confidential, err := p.secret(ctx, v.secrets.expand, "NodeExpandSecretRef")
	if err != nil {
		return err
	}
	request := &csipb.NodeExpandVolumeRequest{
		VolumeId: v.handle, VolumePath: path, CapacityRange: &csipb.CapacityRange{RequiredBytes: size.Value()},
		VolumeCapability: v.capability(), Secrets: confidential,
	}
	if v.able.stage {
		if request.StagingTargetPath = p.globalMount(device{v.driver, v.handle}); v.block {
			request.StagingTargetPath = p.stagingPath(v.name)
		}
	}
	if _, err = node.NodeExpandVolume(ctx, request); err != nil {
		return fmt.Errorf("Expander.NodeExpand failed to expand the volume : %w", err)
	}
	return nil
}

// notExpanded says in the claim's status why its volume was not expanded. A volume that cannot be expanded while it is in use does not
// keep the pod from starting.
func (p *expander) notExpanded(ctx context.Context, v *volume, claim *corev1.PersistentVolumeClaim, recovers bool, cause error) error {
	code := status.Code(cause)
	if recovers && (final(cause) || !v.able.expand) {
		_, err := p.patchClaim(ctx, claim, func(c *corev1.PersistentVolumeClaim) {
			if code == codes.InvalidArgument || code == codes.OutOfRange || code == codes.NotFound || reconsidered(c) {
				c.Status.AllocatedResourceStatuses[corev1.ResourceStorage] = corev1.PersistentVolumeClaimNodeResizeInfeasible
			}
			if !slices.ContainsFunc(c.Status.Conditions, isNodeError) {
				c.Status.Conditions = append(c.Status.Conditions, corev1.PersistentVolumeClaimCondition{
					Type: corev1.PersistentVolumeClaimNodeResizeError, Status: corev1.ConditionTrue,
					LastTransitionTime: metav1.NewTime(p.host.Clock.Now()), Message: fmt.Sprintf("failed to expand pvc with %v", cause),
				})
			}
		})
		if err != nil {
			return fmt.Errorf("%w; the claim's status could not be updated: %w", cause, err)
		}
	}
	if code == codes.FailedPrecondition {
		return nil
	}
	return cause
}

// reconsidered reports whether the user asks for another size since the node failed for good. Then the resizer has to decide what is next.
func reconsidered(c *corev1.PersistentVolumeClaim) bool {
	asked, tried := c.Spec.Resources.Requests[corev1.ResourceStorage], c.Status.AllocatedResources[corev1.ResourceStorage]
	return asked.Cmp(tried) != 0 && slices.ContainsFunc(c.Status.Conditions, isNodeError)
}

// isNodeError reports whether a condition says that the node failed.
func isNodeError(c corev1.PersistentVolumeClaimCondition) bool {
	return c.Type == corev1.PersistentVolumeClaimNodeResizeError && c.Status == corev1.ConditionTrue
}

// isResize reports whether a condition is about an expansion.
func isResize(c corev1.PersistentVolumeClaimCondition) bool {
	switch c.Type {
	case corev1.PersistentVolumeClaimFileSystemResizePending, corev1.PersistentVolumeClaimResizing,
		corev1.PersistentVolumeClaimControllerResizeError, corev1.PersistentVolumeClaimNodeResizeError:
		return true
	}
	return false
}

// patchClaim changes a claim's status; a claim that others have changed meanwhile is left.
func (p *expander) patchClaim(
	ctx context.Context, claim *corev1.PersistentVolumeClaim, change func(*corev1.PersistentVolumeClaim),
) (*corev1.PersistentVolumeClaim, error) {
	changed := claim.DeepCopy()
	if change(changed); len(changed.Status.AllocatedResourceStatuses) == 0 {
		changed.Status.AllocatedResourceStatuses = nil
	}
	before, err := json.Marshal(claim)
	if err != nil {
		return nil, fmt.Errorf("encode claim: %w", err)
	}
	after, err := json.Marshal(changed)
	if err != nil {
		return nil, fmt.Errorf("encode claim: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.PersistentVolumeClaim{})
	if err != nil {
		return nil, fmt.Errorf("compare claim: %w", err)
	}
	if string(patch) == "{}" {
		return claim, nil
	}
	var whole map[string]any
	if err := json.Unmarshal(patch, &whole); err != nil {
		return nil, fmt.Errorf("read patch of claim: %w", err)
	}
	whole["metadata"] = map[string]any{"uid": claim.UID, "resourceVersion": claim.ResourceVersion}
	if patch, err = json.Marshal(whole); err != nil {
		return nil, fmt.Errorf("encode patch of claim: %w", err)
	}
	return p.host.Claims.PatchClaimStatus(ctx, claim.Namespace, claim.Name, patch)
}

// tell records an event for the pod and one for the claim.
func (p *expander) tell(v *volume, kind, reason, message string) {
	if p.host.Event != nil {
		p.host.Event(v.pod, kind, reason, message)
		p.host.Event(v.spec.Claim, kind, reason, message)
	}
}

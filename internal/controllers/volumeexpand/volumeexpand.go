// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package volumeexpand passes claims whose users ask for more storage to the drivers' external-resizers.
//
// There is no driver left that the control plane itself expands volumes with. The external-resizer of a CSI driver expands the volume, and
// sets the claim's conditions Resizing and FileSystemResizePending, its allocatedResources and their statuses; the node expands the file
// system and sets the claim's capacity. This controller records an event that the claim waits for them. For a volume of a former in-tree
// driver, it also names the CSI driver in an annotation, by which the resizer finds the claim.
package volumeexpand

import (
	"context"
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"
	translation "k8s.io/csi-translation-lib"

	"github.com/mortise-dev/mortise/internal/controllers"
)

const (
	// resizer is the annotation with the driver that expands a claim's volume.
	resizer = "volume.kubernetes.io/storage-resizer"

	reason = "ExternalExpanding"
)

// Controller describes the loop.
func Controller() controllers.Controller {
	claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	return controllers.Controller{
		Name:      "persistentvolume-expander-controller",
		Account:   "expand-controller",
		Component: "volume_expand",
		Inputs:    []schema.GroupVersionResource{claims},
		Outputs:   []schema.GroupVersionResource{claims},
		New:       build,
	}
}

type controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	claims   listers.PersistentVolumeClaimLister
	queue    *controllers.Queue[types.NamespacedName]
	migrated translation.CSITranslator
}

// workers is upstream's number.
const workers = 10

func build(d *controllers.Deps) (controllers.Runner, error) {
	claims := d.Informers.Core().V1().PersistentVolumeClaims()
	c := &controller{
		client: d.Client, recorder: d.Recorder, claims: claims.Lister(), migrated: translation.New(),
		queue: controllers.NewQueue[types.NamespacedName](d, "volume_expand", workers),
	}
	bound := func(claim *corev1.PersistentVolumeClaim) {
		if claim.Status.Phase == corev1.ClaimBound {
			c.queue.Add(controllers.Key(claim))
		}
	}
	err := controllers.Subscribe(d, claims.Informer(), controllers.Handler[*corev1.PersistentVolumeClaim]{
		Add: bound,
		Update: func(before, updated *corev1.PersistentVolumeClaim) {
			if requested(updated).Cmp(*requested(before)) > 0 || capacity(updated).Cmp(*capacity(before)) > 0 {
				bound(updated)
			}
		},
	})
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

// requested returns the storage that a claim's user asks for.
func requested(claim *corev1.PersistentVolumeClaim) *resource.Quantity {
	return claim.Spec.Resources.Requests.Storage()
}

// capacity returns the storage that a claim has.
func capacity(claim *corev1.PersistentVolumeClaim) *resource.Quantity {
	return claim.Status.Capacity.Storage()
}

// sync records that a claim waits for its driver, if it asks for more than it has. All messages are upstream's.
func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	claim, err := c.claims.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get claim: %w", err)
	}
	if requested(claim).Cmp(*capacity(claim)) <= 0 {
		return nil
	}
	pv, err := c.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get volume: %w", err)
	}
	if ref := pv.Spec.ClaimRef; ref == nil || ref.Namespace != claim.Namespace || ref.UID != claim.UID {
		return fmt.Errorf("persistent Volume is not bound to PVC being updated : %s", key)
	}
	if !c.migrated.IsPVMigratable(pv) {
		c.recorder.Event(claim, corev1.EventTypeNormal, reason, "waiting for an external controller to expand this PVC")
		return nil
	}
	driver, err := c.migrated.GetInTreePluginNameFromSpec(pv, nil)
	if err != nil {
		return fmt.Errorf("find driver: %w", err)
	}
	c.recorder.Eventf(claim, corev1.EventTypeNormal, reason, "CSI migration enabled for %s; waiting for external resizer to expand the pvc",
		driver)
	return c.annotate(ctx, claim, driver)
}

// annotate names the CSI driver that replaced an in-tree driver on a claim. The controller's role allows it to change a claim's status, and
// such a change may include annotations.
func (c *controller) annotate(ctx context.Context, claim *corev1.PersistentVolumeClaim, driver string) error {
	name, err := c.migrated.GetCSINameFromInTreeName(driver)
	if err != nil {
		err = fmt.Errorf("error getting CSI driver name for pvc %s/%s, with error %w", claim.Namespace, claim.Name, err)
		c.recorder.Event(claim, corev1.EventTypeWarning, reason, err.Error())
		return err
	}
	if claim.Annotations[resizer] == name {
		return nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": claim.UID, "resourceVersion": claim.ResourceVersion, "annotations": map[string]string{resizer: name},
	}})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	_, err = c.client.CoreV1().PersistentVolumeClaims(claim.Namespace).Patch(ctx, claim.Name, types.StrategicMergePatchType, patch,
		metav1.PatchOptions{}, "status")
	if err != nil {
		err = fmt.Errorf("error setting resizer annotation to pvc %s/%s, with error %w", claim.Namespace, claim.Name, err)
		c.recorder.Event(claim, corev1.EventTypeWarning, reason, err.Error())
	}
	return err
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localprovisioner

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// mine reports whether the controller has made a volume.
func mine(pv *corev1.PersistentVolume) bool {
	return pv.Annotations[provisionedBy] == driver && pv.Spec.CSI != nil && pv.Spec.CSI.Driver == driver &&
		pv.Spec.CSI.VolumeAttributes[lazy] == "true"
}

// nodeOf returns the node of a volume.
func nodeOf(pv *corev1.PersistentVolume) string {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return ""
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			if e.Key == topologyKey && len(e.Values) == 1 {
				return e.Values[0]
			}
		}
	}
	return ""
}

// goes reports whether a volume's directory shall be deleted: its claim is gone, and the policy is Delete.
func goes(pv *corev1.PersistentVolume) bool {
	return pv.Status.Phase == corev1.VolumeReleased && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimDelete
}

// syncVolume deletes a volume that is released, once its node has deleted the directory.
func (c *controller) syncVolume(ctx context.Context, name string) error {
	pv, err := c.volumes.Get(name)
	if apierrors.IsNotFound(err) {
		return c.unname(ctx, name)
	}
	if err != nil {
		return err
	}
	if pv.DeletionTimestamp != nil && pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		return c.drop(ctx, pv) // the directory stays
	}
	if !goes(pv) {
		return nil
	}
	node, err := c.nodes.Get(nodeOf(pv))
	if apierrors.IsNotFound(err) {
		return c.drop(ctx, pv)
	}
	if err != nil {
		return err
	}
	id := pv.Spec.CSI.VolumeHandle
	if slices.Contains(split(node.Annotations[toDelete]), id) && slices.Contains(split(node.Annotations[deleted]), id) {
		return c.drop(ctx, pv)
	}
	return c.annotate(ctx, node.Name, func(ids []string) []string {
		if slices.Contains(ids, id) || len(ids) >= mostAtOnce {
			return ids // the rest follows when these are gone
		}
		return append(ids, id)
	})
}

// unname removes a volume that is gone from the annotation of its node.
func (c *controller) unname(ctx context.Context, name string) error {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	for _, node := range nodes {
		if !slices.Contains(split(node.Annotations[toDelete]), name) {
			continue
		}
		if err := c.annotate(ctx, node.Name, func(ids []string) []string {
			return slices.DeleteFunc(ids, func(id string) bool { return id == name })
		}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		c.enqueueVolumes(node.Name) // there is room for others
	}
	return nil
}

// drop deletes a volume.
func (c *controller) drop(ctx context.Context, pv *corev1.PersistentVolume) error {
	volumes := c.client.CoreV1().PersistentVolumes()
	if pv.DeletionTimestamp == nil {
		only := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pv.UID}}
		if err := volumes.Delete(ctx, pv.Name, only); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete volume %s: %w", pv.Name, err)
		}
		return nil // its change brings it back
	}
	if !slices.Contains(pv.Finalizers, finalizer) {
		return nil
	}
	changed := pv.DeepCopy()
	changed.Finalizers = slices.DeleteFunc(changed.Finalizers, func(f string) bool { return f == finalizer })
	if _, err := volumes.Update(ctx, changed, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("release volume %s: %w", pv.Name, err)
	}
	return nil
}

// split reads an annotation.
func split(text string) []string {
	return slices.DeleteFunc(strings.Split(text, ","), func(id string) bool { return id == "" })
}

// annotate changes which volumes a node shall delete. It reads the Node anew: the controller is the annotation's only writer.
func (c *controller) annotate(ctx context.Context, name string, change func([]string) []string) error {
	node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	have := node.Annotations[toDelete]
	want := strings.Join(change(split(have)), ",")
	if want == have {
		return nil
	}
	value := any(want)
	if want == "" {
		value = nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{toDelete: value}}})
	if err != nil {
		return fmt.Errorf("encode annotation: %w", err)
	}
	_, err = c.client.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

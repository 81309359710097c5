// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// syncNode writes volumesAttached of a node, and enqueues the volumes that have left the list.
func (c *controller) syncNode(ctx context.Context, name string) error {
	attached, leaving := c.ledger.page(name)
	node, err := c.nodes.Get(name)
	switch {
	case apierrors.IsNotFound(err) && len(leaving) == 0:
		return nil // the node's return enqueues it
	case apierrors.IsNotFound(err):
		// The cache may be behind the node's return, and the node may use its volumes again.
		node, err = c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			c.settle(name, leaving, nil)
			return nil
		}
	}
	if err != nil {
		return fmt.Errorf("get node: %w", err)
	}
	list := statusList(node.Status.VolumesAttached, attached)
	if len(leaving) == 0 && sameVolumes(node.Status.VolumesAttached, list) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": node.UID}, "status": map[string]any{"volumesAttached": list},
	})
	if err != nil {
		return fmt.Errorf("encode patch: %w", err)
	}
	node, err = c.client.CoreV1().Nodes().Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("patch node status: %w", err)
	}
	c.settle(name, leaving, node.Status.VolumesInUse)
	return nil
}

// settle enqueues the volumes whose removal from a node's status is written.
func (c *controller) settle(node string, leaving map[string]listing, inUse []corev1.UniqueVolumeName) {
	used := c.ledger.settle(node, leaving, inUse)
	for volume := range leaving {
		if slices.Contains(used, volume) {
			c.volumeQueue.AddAfter(volume, time.Second) // until then the cache shows that the node uses it
		} else {
			c.volumeQueue.Add(volume)
		}
	}
}

// statusList returns what a node's status shall list: these volumes, and those of other drivers that it lists already.
func statusList(before []corev1.AttachedVolume, attached []string) []corev1.AttachedVolume {
	list := []corev1.AttachedVolume{}
	for _, volume := range before {
		if _, _, ours := parseName(string(volume.Name)); !ours {
			list = append(list, volume)
		}
	}
	for _, volume := range attached {
		list = append(list, corev1.AttachedVolume{Name: corev1.UniqueVolumeName(volume)})
	}
	return list
}

// sameVolumes reports whether two lists hold the same volumes, in any order.
func sameVolumes(a, b []corev1.AttachedVolume) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(v corev1.AttachedVolume) bool { return !slices.Contains(b, v) })
}

// difference returns the names that only one of the lists holds.
func difference(a, b []corev1.UniqueVolumeName) []corev1.UniqueVolumeName {
	var only []corev1.UniqueVolumeName
	for _, name := range a {
		if !slices.Contains(b, name) {
			only = append(only, name)
		}
	}
	for _, name := range b {
		if !slices.Contains(a, name) {
			only = append(only, name)
		}
	}
	return only
}

// managed reports whether this controller attaches the volumes of a node; otherwise the node does.
func managed(node *corev1.Node) bool {
	_, ok := node.Annotations["volumes.kubernetes.io/controller-managed-attach-detach"]
	return ok
}

func ready(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}

func outOfService(node *corev1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

// writeNode writes labels and status where they differ from what is there.
func (m *Manager) writeNode(ctx context.Context, have *corev1.Node, heartbeat bool) error {
	want := m.object(have)
	if !equality.Semantic.DeepEqual(have.Labels, want.Labels) || !equality.Semantic.DeepEqual(have.Annotations, want.Annotations) {
		annotations := map[string]any{}
		for name := range have.Annotations {
			annotations[name] = nil // unless it is wanted
		}
		for name, value := range want.Annotations {
			annotations[name] = value
		}
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"labels": want.Labels, "annotations": annotations}})
		if err != nil {
			return fmt.Errorf("encode node's labels: %w", err)
		}
		_, err = m.Client.CoreV1().Nodes().Patch(ctx, m.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return fmt.Errorf("label node %s: %w", m.NodeName, err)
		}
	}
	if !heartbeat && sameStatus(have.Status, want.Status) {
		return nil
	}
	before, err := json.Marshal(corev1.Node{Status: have.Status})
	if err != nil {
		return fmt.Errorf("encode node's status: %w", err)
	}
	after, err := json.Marshal(corev1.Node{Status: want.Status})
	if err != nil {
		return fmt.Errorf("encode node's status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Node{})
	if err != nil {
		return fmt.Errorf("compare node's status: %w", err)
	}
	if patch, err = replaceAddresses(patch, have.Status.Addresses, want.Status.Addresses); err != nil {
		return err
	}
	if string(patch) == "{}" {
		return nil
	}
	_, err = m.Client.CoreV1().Nodes().Patch(ctx, m.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write status of node %s: %w", m.NodeName, err)
	}
	return nil
}

// sameStatus compares without the times of heartbeats.
func sameStatus(a, b corev1.NodeStatus) bool {
	strip := func(s corev1.NodeStatus) corev1.NodeStatus {
		s = *s.DeepCopy()
		for i := range s.Conditions {
			s.Conditions[i].LastHeartbeatTime = metav1.Time{}
		}
		return s
	}
	return equality.Semantic.DeepEqual(strip(a), strip(b))
}

// replaceAddresses has a patch of a Node's status replace all addresses, if they are others. By themselves patches tell addresses by
// their types, and a node may have two of one.
func replaceAddresses(patch []byte, have, want []corev1.NodeAddress) ([]byte, error) {
	if slices.Equal(have, want) {
		return patch, nil
	}
	var whole map[string]any
	if err := json.Unmarshal(patch, &whole); err != nil {
		return nil, fmt.Errorf("read patch of node's status: %w", err)
	}
	status, _ := whole["status"].(map[string]any)
	if status == nil {
		status = map[string]any{}
	}
	list := []any{map[string]any{"$patch": "replace"}}
	for _, a := range want {
		list = append(list, a)
	}
	delete(status, "$setElementOrder/addresses")
	status["addresses"], whole["status"] = list, status
	patch, err := json.Marshal(whole)
	if err != nil {
		return nil, fmt.Errorf("encode node's addresses: %w", err)
	}
	return patch, nil
}

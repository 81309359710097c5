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

// writeNode writes the differences between two versions of the Node.
func (m *Manager) writeNode(ctx context.Context, have, want *corev1.Node, heartbeat bool) error {
	nodes := m.Client.CoreV1().Nodes()
	patch, err := twoWay(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: have.Labels, Annotations: have.Annotations}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: want.Labels, Annotations: want.Annotations}},
	)
	if err != nil {
		return err
	}
	if string(patch) != "{}" {
		written, err := nodes.Patch(ctx, m.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			return fmt.Errorf("label node %s: %w", m.NodeName, err)
		}
		m.saw(written)
	}
	if !heartbeat && sameStatus(have.Status, want.Status) {
		return nil
	}
	if patch, err = twoWay(&corev1.Node{Status: have.Status}, &corev1.Node{Status: want.Status}); err != nil {
		return err
	}
	if patch, err = replaceAddresses(patch, have.Status.Addresses, want.Status.Addresses); err != nil {
		return err
	}
	if string(patch) == "{}" {
		return nil
	}
	written, err := nodes.Patch(ctx, m.NodeName, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("write status of node %s: %w", m.NodeName, err)
	}
	if slices.ContainsFunc(written.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}) {
		m.Metrics.ready(m.Clock.Now())
	}
	m.saw(written)
	return nil
}

// twoWay returns the patch from one Node to the other, with the differences only.
func twoWay(have, want *corev1.Node) ([]byte, error) {
	before, err := json.Marshal(have)
	if err != nil {
		return nil, fmt.Errorf("encode node: %w", err)
	}
	after, err := json.Marshal(want)
	if err != nil {
		return nil, fmt.Errorf("encode node: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Node{})
	if err != nil {
		return nil, fmt.Errorf("compare node: %w", err)
	}
	return patch, nil
}

// sameStatus compares statuses without the times of heartbeats.
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

// replaceAddresses makes a patch of a Node's status replace all addresses if any differs. By default, patches identify addresses by their
// types, and a node may have two of one type.
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

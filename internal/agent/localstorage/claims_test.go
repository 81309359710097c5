// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localstorage

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestAwaitNode: the driver registers when there is a Node, and the Node is not lost for the deletions.
func TestAwaitNode(t *testing.T) {
	d := NewDeleter(nil, nil)
	ended, end := context.WithCancel(t.Context())
	end()
	if d.AwaitNode(ended) {
		t.Error("there is a Node before one was seen")
	}
	d.Saw(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "old"}})
	d.Saw(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "new"}})
	if !d.AwaitNode(t.Context()) {
		t.Error("there is no Node")
	}
	select {
	case node := <-d.seen:
		if node.Name != "new" {
			t.Errorf("the deletions see the Node %s", node.Name)
		}
	default:
		t.Error("the deletions see no Node")
	}
}

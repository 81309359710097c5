// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package replicaset

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{}, Controller(), ReplicationControllers())
}

// TestNeighbours: pods of a set that nobody owns are not spread: which node they are on is no reason to delete one.
func TestNeighbours(t *testing.T) {
	one := int32(1)
	rs := &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Replicas: &one}}
	c := &controller{source: source{siblings: func(*metav1.OwnerReference) ([]set, error) { return nil, nil }}}
	if got := c.neighbours(rs, make([]*corev1.Pod, 3)); len(got) != 0 {
		t.Errorf("%d neighbours", len(got))
	}
}

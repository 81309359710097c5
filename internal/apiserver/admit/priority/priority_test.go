// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package priority_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/priority"
	"github.com/mortise-dev/mortise/resource"
)

func TestScenarios(t *testing.T) { admittest.Run(t, priority.New()) }

// unserved is the backend of a server that does not serve priority classes.
type unserved struct{ resource.Backend }

func (unserved) List(_ context.Context, r schema.GroupResource, _ string) ([]resource.Object, error) {
	return nil, apierrors.NewNotFound(r, "")
}

// TestWithoutClasses: on a server that does not serve priority classes, pods have priority 0.
func TestWithoutClasses(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}}
	a := &admit.Attributes{Operation: admit.Create, Object: pod, Descriptor: &resource.Descriptor{Resource: "pods", Kind: "Pod"}}
	if err := (admit.Chain{priority.New()}).Mutate(t.Context(), unserved{}, a); err != nil {
		t.Fatal(err)
	}
	if pod.Spec.Priority == nil || *pod.Spec.Priority != 0 {
		t.Errorf("priority %v, want 0", pod.Spec.Priority)
	}
}

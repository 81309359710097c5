// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/resource"
)

// evictionBackend holds a pod and its budget; its client goes as soon as the budget is written.
type evictionBackend struct {
	resource.Backend
	pod     *corev1.Pod
	budget  *policyv1.PodDisruptionBudget
	gone    context.CancelFunc
	deleted bool
}

func (b *evictionBackend) Get(context.Context, schema.GroupResource, string, string) (resource.Object, error) {
	return b.pod, nil
}

func (b *evictionBackend) List(context.Context, schema.GroupResource, string) ([]resource.Object, error) {
	return []resource.Object{b.budget}, nil
}

func (b *evictionBackend) Update(ctx context.Context, r schema.GroupResource, _, _ string, _ bool, change func(resource.Object) error) (resource.Object, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r == podsResource {
		return b.pod, change(b.pod)
	}
	defer b.gone()
	return b.budget, change(b.budget)
}

func (b *evictionBackend) Delete(ctx context.Context, _ schema.GroupResource, _, _ string, _ *metav1.DeleteOptions) error {
	b.deleted = ctx.Err() == nil
	return ctx.Err()
}

// TestEvictionOutlivesItsClient wants a pod gone for which its budget has paid, although nobody waits for the answer.
func TestEvictionOutlivesItsClient(t *testing.T) {
	labels := map[string]string{"app": "web"}
	ctx, gone := context.WithCancel(t.Context())
	b := &evictionBackend{
		gone: gone,
		pod: &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", Labels: labels},
			Status:     corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		},
		budget: &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "default"},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1, CurrentHealthy: 2, DesiredHealthy: 1},
		},
	}
	if _, err := evictPod(ctx, b, "default", "one", &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "one"}}, &metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() == nil || b.budget.Status.DisruptionsAllowed != 0 || !b.deleted {
		t.Errorf("allowed %d, deleted %t", b.budget.Status.DisruptionsAllowed, b.deleted)
	}
}

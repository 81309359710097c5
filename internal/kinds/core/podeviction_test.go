// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

func (b *evictionBackend) Update(ctx context.Context, r schema.GroupResource, _, _ string, _ bool,
	change func(resource.Object) error) (resource.Object, error) {
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
			Status: corev1.PodStatus{Phase: corev1.PodRunning,
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		},
		budget: &policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "default"},
			Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}},
			Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: 1, CurrentHealthy: 2, DesiredHealthy: 1},
		},
	}
	if _, err := evictPod(ctx, b, "default", "one", &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "one"}},
		&metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() == nil || b.budget.Status.DisruptionsAllowed != 0 || !b.deleted {
		t.Errorf("allowed %d, deleted %t", b.budget.Status.DisruptionsAllowed, b.deleted)
	}
}

// racingBackend is one whose pod changes each time before it is written, as long as changes are left.
type racingBackend struct {
	evictionBackend
	changes []func(*corev1.Pod)
}

func (b *racingBackend) Get(context.Context, schema.GroupResource, string, string) (resource.Object, error) {
	return b.pod.DeepCopy(), nil
}

func (b *racingBackend) Update(ctx context.Context, r schema.GroupResource, namespace, name string, dry bool,
	change func(resource.Object) error) (resource.Object, error) {
	if r == podsResource && len(b.changes) > 0 {
		b.changes[0](b.pod)
		b.pod.ResourceVersion += "0"
		b.changes = b.changes[1:]
	}
	return b.evictionBackend.Update(ctx, r, namespace, name, dry, change)
}

// TestEvictionOfAPodThatChanges: a pod that need not be counted when it is looked at is not deleted without being counted
// when it has become one that has to be.
func TestEvictionOfAPodThatChanges(t *testing.T) {
	ready := func(pod *corev1.Pod) {
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	still := func(*corev1.Pod) {}
	always := policyv1.AlwaysAllow
	version := "1"
	for _, c := range []struct {
		name    string
		phase   corev1.PodPhase
		policy  *policyv1.UnhealthyPodEvictionPolicyType
		allowed int32
		changes []func(*corev1.Pod)
		options *metav1.DeleteOptions
		deleted bool
		left    int32
		code    int32
	}{
		{"a pending pod that becomes ready is counted", corev1.PodPending, nil, 1, []func(*corev1.Pod){ready}, nil, true, 0, 0},
		{"and stays where the budget is spent", corev1.PodPending, nil, 0, []func(*corev1.Pod){ready}, nil, false, 0, 429},
		{"a pending pod that stays pending goes", corev1.PodPending, nil, 0, []func(*corev1.Pod){still, still}, nil, true, 0, 0},
		{"not another version than the one that was asked for", corev1.PodPending, nil, 1, []func(*corev1.Pod){still},
			&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &version}}, false, 1, 409},
		{"a pod that is not ready and becomes so", corev1.PodRunning, &always, 0, []func(*corev1.Pod){ready}, nil, false, 0, 429},
		{"one that stays so", corev1.PodRunning, &always, 0, nil, nil, true, 0, 0},
		{"one that has ended is not missed", corev1.PodFailed, nil, 0, []func(*corev1.Pod){still}, nil, true, 0, 0},
	} {
		b := &racingBackend{changes: c.changes, evictionBackend: evictionBackend{
			gone: func() {},
			pod: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", ResourceVersion: "1"},
				Status: corev1.PodStatus{Phase: c.phase}},
			budget: &policyv1.PodDisruptionBudget{
				ObjectMeta: metav1.ObjectMeta{Name: "b", Namespace: "default"},
				// all pods, those without labels too
				Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}, UnhealthyPodEvictionPolicy: c.policy},
				Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: c.allowed, CurrentHealthy: 1, DesiredHealthy: 1},
			},
		}}
		_, err := evictPod(t.Context(), b, "default", "one",
			&policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "one"}, DeleteOptions: c.options}, &metav1.CreateOptions{})
		var status apierrors.APIStatus
		code := int32(0)
		if errors.As(err, &status) {
			code = status.Status().Code
		}
		if b.deleted != c.deleted || b.budget.Status.DisruptionsAllowed != c.left || code != c.code {
			t.Errorf("%s: deleted %t, %d left, answer %d (%v)", c.name, b.deleted, b.budget.Status.DisruptionsAllowed, code, err)
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestStatusIsUpdatedOrPatched: a pod whose newest version is known is updated, at that version; where others may have written meanwhile
// what differs is patched, and theirs stays.
func TestStatusIsUpdatedOrPatched(t *testing.T) {
	started := metav1.NewTime(time.Date(2026, 11, 22, 1, 2, 3, 456, time.UTC))
	whole := started.Rfc3339Copy()
	gate := corev1.PodCondition{Type: "example.com/gate", Status: corev1.ConditionFalse}
	ready := corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse}
	base := corev1.PodStatus{Phase: corev1.PodPending, StartTime: &started, Conditions: []corev1.PodCondition{gate, ready}}
	status := *base.DeepCopy()
	status.Phase, status.Conditions[1].Status = corev1.PodRunning, corev1.ConditionTrue
	shown := onePod("p")
	shown.UID, shown.Namespace, shown.ResourceVersion, shown.Labels = "uid", "default", "5", map[string]string{"a": "b"}
	shown.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kubectl"}}
	shown.Status = *base.DeepCopy()
	shown.Status.StartTime = &whole
	at := func(revision string, change func(*corev1.Pod)) *corev1.Pod {
		pod := shown.DeepCopy()
		if pod.ResourceVersion = revision; change != nil {
			change(pod)
		}
		return pod
	}
	for name, c := range map[string]struct {
		api, made *corev1.Pod
		taken     bool // the server has a later one
		want      []string
	}{
		"nobody has written":         {at("5", nil), nil, false, []string{"update 5"}},
		"we have":                    {at("5", nil), at("6", nil), false, []string{"update 6"}},
		"we have, and it is shown":   {at("7", nil), at("6", nil), false, []string{"update 7"}},
		"of another pod of the name": {at("5", nil), at("6", func(p *corev1.Pod) { p.UID = "other" }), false, []string{"update 5"}},
		"conditions in another order": {at("5", func(p *corev1.Pod) { slices.Reverse(p.Status.Conditions) }), nil, false,
			[]string{"update 5"}},
		"another opens a gate meanwhile": {at("5", nil),
			at("6", func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionTrue }), false, []string{"patch"}},
		"another nominates it meanwhile": {at("5", nil), at("6", func(p *corev1.Pod) { p.Status.NominatedNodeName = "n2" }), false,
			[]string{"patch"}},
		"another writes before us":           {at("5", nil), nil, true, []string{"update 5", "patch"}},
		"another writes before us, again":    {at("5", nil), at("6", nil), true, []string{"update 6", "patch"}},
		"of no revision, as a file gives it": {at("", nil), nil, false, []string{"patch"}},
	} {
		client := fake.NewClientset(c.api)
		var did []string
		client.PrependReactor("*", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.GetSubresource() != "status" {
				t.Errorf("%s: %s of the pod itself", name, action.GetVerb())
			}
			update, ok := action.(clienttesting.UpdateAction)
			if !ok {
				did = append(did, action.GetVerb())
				return true, at("8", nil), nil
			}
			pod := update.GetObject().(*corev1.Pod)
			did = append(did, "update "+pod.ResourceVersion)
			if d := cmp.Diff(status, pod.Status); d != "" || pod.ManagedFields != nil || pod.UID != "uid" || pod.Labels["a"] != "b" {
				t.Errorf("%s: updated with %+v (-want +got):\n%s", name, pod.ObjectMeta, d)
			}
			if c.taken {
				return true, nil, apierrors.NewConflict(corev1.Resource("pods"), "p", nil)
			}
			return true, at("8", nil), nil
		})
		w := &worker{m: &Manager{Config: Config{Client: client}, podTable: newPodTable(nil, nil)}, entry: entry{spec: c.api, made: c.made}}
		made, err := w.sendStatus(t.Context(), c.api, base, status)
		if err != nil || made.ResourceVersion != "8" {
			t.Errorf("%s: %v, %v", name, made, err)
		}
		if d := cmp.Diff(c.want, did); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// TestSpoiled: only what is newer than what the node wrote, and differs in what is the node's, is written again.
func TestSpoiled(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 11, 22, 1, 2, 3, 456, time.UTC))
	conditions := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue},
		{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}}
	ours := corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &now, PodIP: "10.0.0.1", Conditions: conditions}
	whole := now.Rfc3339Copy()
	for name, c := range map[string]struct {
		revision string
		change   func(*corev1.PodStatus)
		want     bool
	}{
		"older":                 {"9", func(s *corev1.PodStatus) { s.Phase = corev1.PodPending }, false},
		"what was written":      {"10", func(s *corev1.PodStatus) { s.Phase = corev1.PodPending }, false},
		"the same":              {"11", func(*corev1.PodStatus) {}, false},
		"whole seconds":         {"11", func(s *corev1.PodStatus) { s.StartTime = &whole }, false},
		"another order":         {"11", func(s *corev1.PodStatus) { slices.Reverse(s.Conditions) }, false},
		"a condition of others": {"11", func(s *corev1.PodStatus) { s.Conditions = append(s.Conditions, corev1.PodCondition{Type: "x"}) }, false},
		"a field of others":     {"11", func(s *corev1.PodStatus) { s.NominatedNodeName = "n" }, false},
		"not ready":             {"11", func(s *corev1.PodStatus) { s.Conditions[0].Status = corev1.ConditionFalse }, true},
		"another phase":         {"100", func(s *corev1.PodStatus) { s.Phase = corev1.PodPending }, true},
	} {
		api := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: c.revision}, Status: *ours.DeepCopy()}
		c.change(&api.Status)
		if got := spoiled(api, *ours.DeepCopy(), "10"); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{}, Controller())
}

func FuzzIndexes(f *testing.F) {
	f.Add("0-2,5", 10)
	f.Add("1,2,4-9", 7)
	f.Fuzz(func(t *testing.T, text string, limit int) {
		set := parseIndexes(text, min(max(limit, 0), 1000))
		if again := parseIndexes(set.String(), 1000); again.String() != set.String() {
			t.Fatalf("%q reads as %q, which reads as %q", text, set, again)
		}
	})
}

func TestIndexesCostNoMoreThanTheirSpans(t *testing.T) {
	all := parseIndexes("0-999999999", 1_000_000_000)
	if got := all.total(); got != 1_000_000_000 {
		t.Fatalf("%d indexes, want 1,000,000,000", got)
	}
	some := indexesOf(7, 3, 4, 5, 3)
	if got := some.String(); got != "3-5,7" {
		t.Errorf("3, 4, 5 and 7 are written %q", got)
	}
	if got := all.shared(some); got != 4 {
		t.Errorf("%d shared, want 4", got)
	}
	if got := some.with(indexesOf(0)).lacking(4, 10); !slices.Equal(got, []int{1, 2, 6, 8}) {
		t.Errorf("lacking are %v", got)
	}
	if some.has(6) || !some.has(4) || some.has(8) {
		t.Error("has does not tell what is in the set")
	}
}

func TestBackOffDoublesAndIsForgottenBySuccess(t *testing.T) {
	now := time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
	ended := func(ago time.Duration) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-ago))}}
	}
	var h history
	for _, want := range []time.Duration{10, 20, 40, 80, 160, 320, 600, 600, 600} {
		h = h.after(nil, []*corev1.Pod{ended(0)})
		if got := h.wait(now); got != want*time.Second {
			t.Errorf("after %d failures wait %v, want %v", h.failures, got, want*time.Second)
		}
	}
	h = h.after([]*corev1.Pod{ended(5 * time.Second)}, []*corev1.Pod{ended(6 * time.Second), ended(4 * time.Second)})
	if h.failures != 1 || h.wait(now) != 6*time.Second {
		t.Errorf("one failure since the success: %d, wait %v", h.failures, h.wait(now))
	}
	if h = h.after([]*corev1.Pod{ended(0)}, nil); h.wait(now) != 0 {
		t.Errorf("after a success wait %v", h.wait(now))
	}
}

func TestPodsThatCannotBeDeletedKeepAJobFromEnding(t *testing.T) {
	j := &batchv1.Job{Spec: batchv1.JobSpec{ActiveDeadlineSeconds: ptr.To[int64](1)}}
	j.Status.StartTime = &metav1.Time{}
	pods := []*corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "a"}}, {ObjectMeta: metav1.ObjectMeta{Name: "b", UID: "b"}}}
	for _, pod := range pods {
		pod.Finalizers = []string{batchv1.JobTrackingFinalizer}
	}
	in := observed{job: j, pods: pods, now: time.Unix(1000, 0)}
	if out := decide(in); len(out.delete) != 2 || find(out.status.Conditions, batchv1.JobFailureTarget) == nil {
		t.Fatalf("past its deadline: %d deleted, conditions %v", len(out.delete), out.status.Conditions)
	}
	in.stuck = map[types.UID]bool{"b": true}
	out := decide(in)
	if len(out.status.Conditions) != 0 || out.status.Active != 1 || len(out.release) != 0 {
		t.Errorf("a pod runs on: conditions %v, active %d, let go %d", out.status.Conditions, out.status.Active, len(out.release))
	}
}

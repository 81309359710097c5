// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cronjob

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestLateCache: a job that has ended before the cache ever heard of it is left alone until the cache tells. If its end were
// noted before, the cache's first sight of it, not ended yet, would be of a job that nobody knows.
func TestLateCache(t *testing.T) {
	made := time.Date(2024, 1, 1, 0, 0, 30, 0, time.UTC)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "c-1", Namespace: "default", UID: "j", CreationTimestamp: metav1.NewTime(made)}}
	done := job.DeepCopy()
	done.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	done.Status.CompletionTime = &metav1.Time{Time: made}
	cron := &batchv1.CronJob{
		ObjectMeta: metav1.ObjectMeta{Name: "c", Namespace: "default", UID: "c", CreationTimestamp: metav1.NewTime(made)},
		Spec:       batchv1.CronJobSpec{Schedule: "0 0 1 1 *"},
		Status:     batchv1.CronJobStatus{Active: []corev1.ObjectReference{{Namespace: "default", Name: "c-1", UID: "j"}}},
	}
	c := &controller{client: fake.NewClientset(cron, done)}
	look := func(cached ...*batchv1.Job) decision {
		t.Helper()
		in, err := c.refresh(t.Context(), observed{cron: cron, jobs: cached, now: made.Add(time.Second)})
		if err != nil {
			t.Fatal(err)
		}
		return decide(in)
	}
	if d := look(); !d.active("j") || len(d.events) > 0 || d.status.LastSuccessfulTime != nil {
		t.Errorf("not in the cache: %+v", d)
	}
	if d := look(job); !d.active("j") || len(d.events) > 0 {
		t.Errorf("in the cache, not ended: %+v", d)
	}
	if d := look(done); d.active("j") || len(d.events) != 1 || d.events[0].reason != "SawCompletedJob" || d.status.LastSuccessfulTime == nil {
		t.Errorf("in the cache, ended: %+v", d)
	}
	// One that is to be replaced is deleted although the cache has not heard of it.
	cron.Spec.Schedule, cron.Spec.ConcurrencyPolicy = "* * * * *", batchv1.ReplaceConcurrent
	in, err := c.refresh(t.Context(), observed{cron: cron, now: made.Add(time.Minute)})
	if err != nil {
		t.Fatal(err)
	}
	if d := decide(in); len(d.delete) != 1 || d.delete[0].Name != "c-1" || d.create == nil {
		t.Errorf("to be replaced: %+v", d)
	}
	if err := c.client.BatchV1().Jobs("default").Delete(t.Context(), "c-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	cron.Spec.Suspend = new(true)
	if d := look(); d.active("j") || len(d.events) != 1 || d.events[0].reason != "MissingJob" {
		t.Errorf("gone: %+v", d)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest_test

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// TestBubble has a CronJob run for half an hour of the bubble's clock.
func TestBubble(t *testing.T) {
	first := embedtest.New(t)
	began := time.Now()
	embedtest.Bubble(t, first, func(t *testing.T, cluster *embed.Server) {
		client := cluster.Client()
		pod := corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		job := batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: pod}}
		cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "often"}, Spec: batchv1.CronJobSpec{
			Schedule: "*/10 * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: job},
		}}
		if _, err := client.BatchV1().CronJobs("default").Create(t.Context(), cron, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		embedtest.Advance(t, 30*time.Minute)
		list, err := client.BatchV1().Jobs("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 3 {
			t.Errorf("%d jobs: want 3", len(list.Items))
		}
		for i := range list.Items {
			if list.Items[i].Status.Succeeded != 1 && time.Since(list.Items[i].CreationTimestamp.Time) > time.Minute {
				t.Errorf("job %s has not succeeded", list.Items[i].Name)
			}
		}
	})
	t.Logf("half an hour took %v", time.Since(began))
}

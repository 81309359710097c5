// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// takesAll is a pod whose first container takes the others with it when it ends with 42.
func takesAll(name string, script string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever,
		Volumes:       []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}},
		Containers: []corev1.Container{
			{
				Name: "a", Command: sh(script), RestartPolicy: new(corev1.ContainerRestartPolicyNever),
				VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}},
				RestartPolicyRules: []corev1.ContainerRestartRule{{
					Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
					ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
				}},
			},
			{Name: "b", Command: sh("sleep 1000")},
		},
	}}
}

// bothRun reports whether both containers run, and were started so often before.
func bothRun(restarts int32) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		return p != nil && len(p.Status.ContainerStatuses) == 2 &&
			!slices.ContainsFunc(p.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
				return s.State.Running == nil || s.RestartCount != restarts
			})
	}
}

func restartingAll(p *corev1.Pod) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.AllContainersRestarting {
			return c
		}
	}
	return corev1.PodCondition{}
}

func TestAllContainersStartAgain(t *testing.T) {
	c, r := newFake(t, nil)
	c.create(takesAll("p", ""))
	first := c.await("p", "running", bothRun(0))
	if got := restartingAll(first); got.Status != corev1.ConditionFalse {
		t.Errorf("condition before: %+v", got)
	}
	sandboxes := r.Calls("RunPodSandbox")
	seen := make(chan *corev1.Pod, 1)
	go func() {
		w, err := c.client.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
		if err != nil {
			seen <- nil
			return
		}
		defer w.Stop()
		r.Exit("p", "a", 42)
		for e := range w.ResultChan() {
			if pod, ok := e.Object.(*corev1.Pod); ok && restartingAll(pod).Status == corev1.ConditionTrue {
				seen <- pod
				return
			}
		}
	}()
	pod := c.await("p", "running again", bothRun(1))
	if got := restartingAll(pod); got.Status != corev1.ConditionFalse || pod.Status.Phase != corev1.PodRunning {
		t.Errorf("after: %s, %+v", pod.Status.Phase, got)
	}
	for _, s := range pod.Status.ContainerStatuses {
		if last := s.LastTerminationState.Terminated; last == nil || last.Reason != "RestartingAllContainers" || last.ExitCode != 137 {
			t.Errorf("%s ended last with %+v", s.Name, last)
		}
	}
	if got := restartingAll(<-seen); got.Reason != "RestartAllContainersStarted" ||
		got.Message != "container exited with restart policy rule" {
		t.Errorf("condition meanwhile: %+v", got)
	}
	if r.Calls("RunPodSandbox") != sandboxes {
		t.Error("another sandbox was made")
	}
	c.awaitEvent("p", "Killing: killing")
	// With another code, nothing starts again.
	r.Exit("p", "a", 1)
	c.await("p", "half over", func(p *corev1.Pod) bool { return p != nil && p.Status.ContainerStatuses[0].State.Terminated != nil })
	r.Exit("p", "b", 0)
	pod = c.await("p", "failed", func(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodFailed })
	if got := restartingAll(pod); got.Status != corev1.ConditionFalse || got.Reason != "PodFailed" {
		t.Errorf("condition at the end: %+v", got)
	}
}

// allAgainEndToEnd has real containers start again, on the volumes that they had.
func allAgainEndToEnd(t *testing.T, c *cluster) {
	c.create(takesAll("anew", "test -e /v/f && exec sleep 1000; touch /v/f; exit 42"))
	pod := c.await("anew", "running again", bothRun(1))
	if pod.Status.Phase != corev1.PodRunning {
		t.Errorf("phase %s", pod.Status.Phase)
	}
}

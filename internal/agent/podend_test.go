// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestEndIsShownWhenNothingIsHeld: the scheduler gives what an ended pod had to the next pod at once, and the node has to accept that.
func TestEndIsShownWhenNothingIsHeld(t *testing.T) {
	c, r := newFake(t, nil)
	pod := func(name string) *corev1.Pod {
		p := onePod(name)
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080}}
		return p
	}
	c.create(pod("first"))
	c.await("first", "running", running(0))
	var free atomic.Bool
	r.Fault("StopPodSandbox", func() error {
		if free.Load() {
			return nil
		}
		return errors.New("the network plug-in is busy")
	})
	r.Exit("first", "c", 0)
	p := c.await("first", "its container ended", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Terminated != nil
	})
	if p.Status.Phase != corev1.PodRunning {
		t.Errorf("phase %s while the sandbox is there", p.Status.Phase)
	}
	c.awaitEvent("first", "FailedKillPod")
	free.Store(true)
	c.await("first", "succeeded", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	c.create(pod("second"))
	c.await("second", "running", running(0))
}

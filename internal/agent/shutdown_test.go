// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestGracefulShutdown(t *testing.T) {
	c, r := newConfigured(t, "shutdownGracePeriod: 20s\nshutdownGracePeriodCriticalPods: 10s\n", nil)
	critical := onePod("critical")
	critical.Spec.Priority = new(int32(2_000_000_000))
	c.create(critical)
	for _, name := range []string{"a", "b"} {
		c.create(onePod(name))
	}
	for _, name := range []string{"a", "b", "critical"} {
		c.await(name, "running", running(0))
	}
	var mu sync.Mutex
	var order []string
	w, err := c.client.CoreV1().Pods("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		limit := time.After(30 * time.Second)
		for {
			select {
			case e := <-w.ResultChan():
				if p, ok := e.Object.(*corev1.Pod); ok && p.Status.Phase == corev1.PodFailed {
					mu.Lock()
					if !slices.Contains(order, p.Name) {
						order = append(order, p.Name)
					}
					done := len(order) == 3
					mu.Unlock()
					if done {
						return
					}
				}
			case <-limit:
				return
			}
		}
	}()
	c.stop()
	<-heard
	w.Stop()
	mu.Lock()
	defer mu.Unlock()
	if len(order) != 3 || order[2] != "critical" {
		t.Errorf("order: %q", order)
	}
	pod := c.await("critical", "ended", failed)
	if pod.Status.Reason != "Terminated" || pod.Status.Message != "Pod was terminated in response to imminent node shutdown." {
		t.Errorf("status: %+v", pod.Status)
	}
	if n := r.Calls("StopPodSandbox"); n < 3 {
		t.Errorf("%d sandboxes were stopped", n)
	}
}

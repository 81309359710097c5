// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestShutdownGroups(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n":                                                                    "0:20 2000000000:10",
		"shutdownGracePeriodByPodPriority: [{priority: 100, shutdownGracePeriodSeconds: 3}, {priority: -5, shutdownGracePeriodSeconds: 7}]\n": "-5:7 100:3",
	} {
		var got []string
		for _, g := range shutdownGroups(configured(t, text)) {
			got = append(got, strings.Join([]string{strconv.Itoa(int(g.Priority)), strconv.Itoa(int(g.ShutdownGracePeriodSeconds))}, ":"))
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	groups := shutdownGroups(configured(t, "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 1}, {priority: 10, shutdownGracePeriodSeconds: 1}, {priority: 20, shutdownGracePeriodSeconds: 1}]\n"))
	for priority, want := range map[int32]int{-1: 0, 0: 0, 9: 0, 10: 1, 19: 1, 20: 2, 5000: 2} {
		if got := groupOf(groups, priority); got != want {
			t.Errorf("priority %d is of group %d, want %d", priority, got, want)
		}
	}
}

func TestGracefulShutdown(t *testing.T) {
	c, r := newConfigured(t, "shutdownGracePeriod: 20s\nshutdownGracePeriodCriticalPods: 10s\n", nil)
	critical := onePod("critical")
	critical.Spec.Priority = new(int32(systemCritical))
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
	if pod.Status.Reason != "Terminated" || pod.Status.Message != shutdownMessage {
		t.Errorf("status: %+v", pod.Status)
	}
	if n := r.Calls("StopPodSandbox"); n < 3 {
		t.Errorf("%d sandboxes were stopped", n)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package shutdown

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// configured reads a configuration.
func configured(t *testing.T, text string) *configv1beta1.KubeletConfiguration {
	t.Helper()
	c, err := kubeletconfig.Parse([]byte("apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n" + text))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestShutdownGroups(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n":                                                                    "0:20 2000000000:10",
		"shutdownGracePeriodByPodPriority: [{priority: 100, shutdownGracePeriodSeconds: 3}, {priority: -5, shutdownGracePeriodSeconds: 7}]\n": "-5:7 100:3",
	} {
		var got []string
		for _, g := range groups(configured(t, text)) {
			got = append(got, strings.Join([]string{strconv.Itoa(int(g.Priority)), strconv.Itoa(int(g.ShutdownGracePeriodSeconds))}, ":"))
		}
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	all := groups(configured(t, "shutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 1}, "+
		"{priority: 10, shutdownGracePeriodSeconds: 1}, {priority: 20, shutdownGracePeriodSeconds: 1}]\n"))
	for priority, want := range map[int32]int{-1: 0, 0: 0, 9: 0, 10: 1, 19: 1, 20: 2, 5000: 2} {
		if got := groupOf(all, priority); got != want {
			t.Errorf("priority %d is of group %d, want %d", priority, got, want)
		}
	}
}

// node is a node whose pods end as soon as they are killed, unless they are stubborn.
type node struct {
	pods     []*corev1.Pod
	stubborn types.UID
	notReady bool
	killed   []string
}

func (n *node) ActivePods() []*corev1.Pod { return n.pods }
func (n *node) Alive(pod types.UID) bool  { return pod == n.stubborn }
func (n *node) Killed() <-chan struct{}   { return nil }
func (n *node) SetShuttingDown()          { n.notReady = true }
func (n *node) KillPod(pod types.UID, end podspec.End) {
	n.killed = append(n.killed, fmt.Sprintf("%s %s %d %t", pod, end.Reason, end.Grace, end.Disruption == message))
}

func ofPriority(uid types.UID, priority int32, grace int64) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid},
		Spec: corev1.PodSpec{Priority: &priority, TerminationGracePeriodSeconds: &grace}}
}

// Each group of priorities ends before the next one begins; a pod that does not end is waited for no longer than its group's time.
func TestGroupsEndOneAfterAnother(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{pods: []*corev1.Pod{ofPriority("critical", 2_000_000_000, 30), ofPriority("plain", 0, 5), ofPriority("slow", 0, 60)},
			stubborn: "slow"}
		k := configured(t, "shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s\n")
		m := New(Config{Pods: n, Killer: n, Status: n, Kubelet: k, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler)})
		if why := m.Refusal(); why != "" || m.ShuttingDown() {
			t.Errorf("before the end: %q", why)
		}
		outer, end := context.WithCancel(t.Context())
		end()
		inner, cancel := Outlast(outer, k)
		if inner.Err() != nil {
			t.Error("the inner context does not outlast the outer one")
		}
		began := time.Now()
		if err := m.Run(outer, inner, cancel); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 20*time.Second {
			t.Errorf("it took %s", took)
		}
		if inner.Err() == nil || !n.notReady || m.Refusal() != refusal {
			t.Errorf("at the end: %v, %t, %q", inner.Err(), n.notReady, m.Refusal())
		}
		if diff := cmp.Diff([]string{"plain Terminated 5 true", "slow Terminated 20 true", "critical Terminated 10 true"}, n.killed); diff != "" {
			t.Error(diff)
		}
	})
}

// A node that is not configured to end its pods goes at once.
func TestWithoutGrace(t *testing.T) {
	k, n := configured(t, ""), &node{pods: []*corev1.Pod{ofPriority("plain", 0, 5)}}
	outer, end := context.WithCancel(t.Context())
	inner, cancel := Outlast(outer, k)
	defer cancel()
	end()
	if inner.Err() == nil {
		t.Error("the node outlasts its context")
	}
	m := New(Config{Pods: n, Killer: n, Status: n, Kubelet: k, Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler)})
	if err := m.Run(outer, inner, cancel); err != nil || len(n.killed) > 0 || n.notReady {
		t.Errorf("%v, %v, %t", err, n.killed, n.notReady)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/cri/fakecri"
)

// drain forgets the waits that have begun so far.
func (c *tellingClock) drain() {
	for len(c.waits) > 0 {
		<-c.waits
	}
}

// next waits until somebody waits for no longer than most, lets that time pass, and returns it.
func (c *tellingClock) next(t *testing.T, most time.Duration) time.Duration {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case got := <-c.waits:
			if got > 0 && got <= most {
				c.Step(got)
				return got
			}
		case <-limit:
			t.Fatalf("nobody waits for up to %v", most)
		}
	}
}

// failing makes a call of the runtime fail, and tells of each.
func failing(r *fakecri.Runtime, call, text string) <-chan struct{} {
	tried := make(chan struct{}, 1000)
	r.Fault(call, func() error {
		tried <- struct{}{}
		return errors.New(text)
	})
	return tried
}

// retryMost is the longest wait of a status that cannot be written.
const retryMost = 10 * time.Second

// doubling are waits that begin with a second and double, up to most, for as long as the time lasts.
func doubling(most, lasts time.Duration) (out []time.Duration) {
	for wait, sum := time.Second, time.Duration(0); sum < lasts; wait = min(2*wait, most) {
		out, sum = append(out, wait), sum+wait
	}
	return out
}

// TestPodThatCannotBeEnded: a runtime that cannot take a pod's sandbox away for twenty minutes is asked less and less often, and what is
// wrong is in a few lines of the log and in one event of the pod. When the runtime can again, the pod goes.
func TestPodThatCannotBeEnded(t *testing.T) {
	for _, call := range []string{"StopPodSandbox", "RemovePodSandbox"} {
		t.Run(call, func(t *testing.T) {
			fake := &tellingClock{clocktesting.NewFakeClock(time.Now().Truncate(time.Second)), make(chan time.Duration, 1024)}
			c, r := newFake(t, fake)
			c.create(onePod("p"))
			c.await("p", "ready", isReady)
			tried := failing(r, call, "remove network namespace: device or resource busy")
			fake.drain()
			if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, wait := range doubling(5*time.Minute, 20*time.Minute) {
				<-tried
				fake.pass(t, wait)
			}
			<-tried
			if n := len(tried); n > 0 {
				t.Errorf("%d more calls in twenty minutes", n)
			}
			lines := c.log.lines("Could not end a pod")
			if len(lines) < 3 || len(lines) > 6 || !strings.Contains(lines[0], "level=WARN") ||
				!strings.Contains(lines[0], "device or resource busy") || !strings.Contains(lines[1], "failures=") {
				t.Errorf("%d lines of the log: %q", len(lines), lines)
			}
			c.awaitEvent("p", "FailedKillPod: error killing pod: ")
			killed := 0
			for _, e := range c.events("p") {
				if strings.HasPrefix(e, "FailedKillPod") {
					killed++
				}
			}
			if killed != 1 {
				t.Errorf("events: %q", c.events("p"))
			}
			r.Fault(call, nil)
			fake.pass(t, 5*time.Minute)
			c.await("p", "gone", func(p *corev1.Pod) bool { return p == nil })
		})
	}
}

// TestOrphanThatCannotBeRemoved: the same of a pod that the API server does not have any more.
func TestOrphanThatCannotBeRemoved(t *testing.T) {
	fake := &tellingClock{clocktesting.NewFakeClock(time.Now().Truncate(time.Second)), make(chan time.Duration, 1024)}
	c, r := newFake(t, fake)
	c.create(onePod("p"))
	c.await("p", "ready", isReady)
	tried := failing(r, "RemovePodSandbox", "device or resource busy")
	fake.drain()
	zero := int64(0)
	if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	for _, wait := range doubling(5*time.Minute, 20*time.Minute) {
		<-tried
		fake.pass(t, wait)
	}
	<-tried
	if lines := c.log.lines("Could not end a pod"); len(lines) < 3 || len(lines) > 6 {
		t.Errorf("%d lines of the log: %q", len(lines), lines)
	}
	c.awaitEvent("p", "FailedKillPod: error killing pod: ")
	removed := make(chan struct{}, 1)
	r.Fault("RemovePodSandbox", func() error { removed <- struct{}{}; return nil })
	fake.pass(t, 5*time.Minute)
	select {
	case <-removed:
	case <-time.After(20 * time.Second):
		t.Error("the pod stays")
	}
}

// TestRuntimeThatDoesNotAnswer: a worker asks a runtime that answers nothing less and less often.
func TestRuntimeThatDoesNotAnswer(t *testing.T) {
	fake := &tellingClock{clocktesting.NewFakeClock(time.Now().Truncate(time.Second)), make(chan time.Duration, 1024)}
	c, r := newFake(t, fake)
	var silent atomic.Bool
	silent.Store(true)
	r.Fault("ListPodSandbox", func() error {
		if silent.Load() {
			return errors.New("no")
		}
		return nil
	})
	fake.drain()
	c.create(onePod("p"))
	var sum time.Duration
	for sum < 20*time.Minute {
		sum += fake.next(t, 5*time.Minute)
	}
	if lines := c.log.lines("Container runtime does not answer"); len(lines) < 3 || len(lines) > 6 {
		t.Errorf("%d lines of the log: %q", len(lines), lines)
	}
	silent.Store(false)
	fake.next(t, 5*time.Minute)
	c.await("p", "ready", isReady)
}

// TestStatusThatCannotBeWritten: the status of a pod is written at least every ten seconds until the API server takes it, and what is
// wrong is in a few lines of the log.
func TestStatusThatCannotBeWritten(t *testing.T) {
	fake := &tellingClock{clocktesting.NewFakeClock(time.Now().Truncate(time.Second)), make(chan time.Duration, 1024)}
	c, r := newFake(t, fake)
	c.create(onePod("p"))
	c.await("p", "ready", isReady)
	var fails atomic.Bool
	fails.Store(true)
	refuse := func(action clienttesting.Action) (bool, runtime.Object, error) {
		if fails.Load() && action.GetSubresource() == "status" {
			return true, nil, errors.New("no")
		}
		return false, nil, nil
	}
	c.answers.Prepend("update", "pods", refuse)
	c.answers.Prepend("patch", "pods", refuse)
	fake.drain()
	r.Exit("p", "c", 1)
	var sum time.Duration
	for sum < 20*time.Minute {
		sum += fake.next(t, retryMost)
	}
	if lines := c.log.lines("Could not write the pod status"); len(lines) < 3 || len(lines) > 6 {
		t.Errorf("%d lines of the log: %q", len(lines), lines)
	}
	fails.Store(false)
	fake.next(t, time.Minute) // the last attempt may have been made since
	c.await("p", "running again", running(1))
}

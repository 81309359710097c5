// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/cri/fakecri"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/machine/images"
)

// gauge is what is said to be there.
type gauge struct {
	mu   sync.Mutex
	seen evict.Observations
}

func (g *gauge) set(o evict.Observations) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.seen = o
}

func (g *gauge) measure(context.Context) evict.Observations {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.seen
}

// pressed is a node whose measurements the test makes, on a clock of the test's.
func pressed(t *testing.T, text string) (*cluster, *fakecri.Runtime, *gauge, *clocktesting.FakeClock) {
	g, fake := &gauge{}, clocktesting.NewFakeClock(time.Now().Truncate(time.Second))
	c, r := newConfigured(t, text, func(o *Options) { o.Host.Measure, o.Clock, o.Metrics = g.measure, fake, NewMetrics() })
	return c, r, g, fake
}

// counted is how many evictions for a signal the node has counted.
func (c *cluster) counted(signal string) float64 {
	c.t.Helper()
	families, err := c.options.Metrics.Gatherer().Gather()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == "kubelet_evictions" && m.GetLabel()[0].GetName() == "eviction_signal" && m.GetLabel()[0].GetValue() == signal {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// look lets the node look until the condition of the pod holds. Time stands while a pod is being evicted: the node waits only so long
// for what that leaves.
func (c *cluster) look(fake *clocktesting.FakeClock, name, what string, want func(*corev1.Pod) bool) *corev1.Pod {
	c.t.Helper()
	done := make(chan struct{})
	defer close(done)
	go func() {
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				if !c.node.(*api).node.shutdown.ShuttingDown() && !c.node.(*api).node.workers.Killing(30*time.Second) {
					fake.Step(10 * time.Second)
				}
			}
		}
	}()
	return c.await(name, what, want)
}

func failed(p *corev1.Pod) bool { return p != nil && p.Status.Phase == corev1.PodFailed }

func TestEvictionByMemory(t *testing.T) {
	c, r, g, fake := pressed(t, "evictionHard: {memory.available: 100Mi}\nevictionPressureTransitionPeriod: 1000h\n")
	for name, used := range map[string]uint64{"small": 10 << 20, "large": 300 << 20, "important": 900 << 20} {
		p := onePod(name)
		if name == "important" {
			p.Spec.Priority = new(int32(1000))
		}
		r.Uses(name, used)
		c.create(p)
		c.await(name, "running", running(0))
	}
	// The first container that is stopped leaves enough for the others.
	r.Fault("StopContainer", func() error {
		g.set(evict.Observations{evict.MemoryAvailable: {Available: 900 << 20, Capacity: 1 << 30}})
		return nil
	})
	g.set(evict.Observations{evict.MemoryAvailable: {Available: 90 << 20, Capacity: 1 << 30}})
	pod := c.look(fake, "large", "evicted", failed)
	want := "The node was low on resource: memory. Threshold quantity: 100Mi, available: 90Mi. Container c was using 300Mi, request is 0, has larger consumption of memory. "
	if pod.Status.Reason != "Evicted" || pod.Status.Message != want {
		t.Errorf("status: %s, %q", pod.Status.Reason, pod.Status.Message)
	}
	if got := c.counted("memory.available"); got != 1 {
		t.Errorf("%v evictions were counted", got)
	}
	found := false
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.DisruptionTarget {
			found = condition.Status == corev1.ConditionTrue && condition.Reason == "TerminationByKubelet" && condition.Message == want
		}
	}
	if !found {
		t.Errorf("conditions: %+v", pod.Status.Conditions)
	}
	c.awaitEvent("large", "Evicted")
	c.awaitNode("under pressure", func(node *corev1.Node) bool {
		return slices.ContainsFunc(node.Status.Conditions, func(have corev1.NodeCondition) bool {
			return have.Type == corev1.NodeMemoryPressure && have.Status == corev1.ConditionTrue
		})
	})

	// Pods that asked for nothing may not come now.
	c.create(onePod("late"))
	late := c.await("late", "refused", failed)
	if late.Status.Reason != "Evicted" || late.Status.Message != "Pod was rejected: The node had condition: [MemoryPressure]. " {
		t.Errorf("status: %s, %q", late.Status.Reason, late.Status.Message)
	}
	p := onePod("asks")
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Mi")}
	c.create(p)
	c.await("asks", "running", running(0))

	for _, name := range []string{"small", "important"} {
		c.await(name, "still running", running(0))
	}
}

// awaitNode watches the node until it is as wanted.
func (c *cluster) awaitNode(what string, is func(*corev1.Node) bool) {
	c.t.Helper()
	w, err := c.client.CoreV1().Nodes().Watch(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	defer w.Stop()
	limit := time.After(30 * time.Second)
	for {
		node, err := c.client.CoreV1().Nodes().Get(c.t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		if is(node) {
			return
		}
		select {
		case <-w.ResultChan():
		case <-limit:
			c.t.Fatalf("the node is not %s: %+v", what, node.Status)
		}
	}
}

func TestLimitsOfLocalStorage(t *testing.T) {
	c, _, _, fake := pressed(t, "")
	p, size := onePod("full"), resource.MustParse("1Mi")
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{SizeLimit: &size}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	made := c.create(p)
	c.await("full", "running", running(0))
	path := filepath.Join(c.options.Host.RootDir, "pods", string(made.UID), "volumes", "kubernetes.io~empty-dir", "v", "file")
	if err := os.WriteFile(path, make([]byte, 2<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	pod := c.look(fake, "full", "evicted", failed)
	if pod.Status.Reason != "Evicted" || pod.Status.Message != `Usage of EmptyDir volume "v" exceeds the limit "1Mi". ` {
		t.Errorf("status: %s, %q", pod.Status.Reason, pod.Status.Message)
	}
}

func TestImagesGoBeforePods(t *testing.T) {
	c, r, g, fake := pressed(t, "evictionHard: {imagefs.available: 10%}\n")
	r.Pullable("example.org/unused:1")
	p := onePod("puller")
	p.Spec.Containers[0].Image, p.Spec.RestartPolicy = "example.org/unused:1", corev1.RestartPolicyNever
	c.createAs(p, corev1.PullAlways)
	c.await("puller", "running", running(0))
	r.Exit("puller", "c", 0)
	over := c.await("puller", "over", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodSucceeded })
	c.awaitStep(fake, func() bool { return !c.node.(*api).node.workers.Alive(over.UID) }) // its container counts no more
	r.Pullable("example.org/used:1")
	p = onePod("runs")
	p.Spec.Containers[0].Image = "example.org/used:1"
	c.createAs(p, corev1.PullAlways)
	c.await("runs", "running", running(0))
	g.set(evict.Observations{evict.ImageFSAvailable: {Available: 5, Capacity: 100}})
	r.Fault("RemoveImage", func() error {
		g.set(evict.Observations{evict.ImageFSAvailable: {Available: 50, Capacity: 100}})
		return nil
	})
	c.awaitStep(fake, func() bool { return !r.HasImage("example.org/unused:1") })
	if !r.HasImage("example.org/used:1") || !r.HasImage(images.Busybox) {
		t.Error("an image was removed that is in use, or cannot be had again")
	}
	c.await("runs", "still running", running(0))
	if got := strings.Join(c.events("runs"), "\n"); strings.Contains(got, "Evicted") {
		t.Errorf("a pod was evicted: %s", got)
	}
}

// awaitStep lets time pass until the condition holds.
func (c *cluster) awaitStep(fake *clocktesting.FakeClock, ok func() bool) {
	c.t.Helper()
	tick, limit := time.NewTicker(50*time.Millisecond), time.After(30*time.Second)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
			fake.Step(10 * time.Second)
		case <-limit:
			c.t.Fatal("nothing happens")
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/scheduler"
	"github.com/mortise-dev/mortise/internal/scheduler/config"
)

// TestTwoSchedulersAndTwoProfilesFillNodes: four simulated nodes of 32 CPUs have room for 16 pods of 8. The cluster's own
// scheduler and a second one with two profiles, none of which knows what the other is about to do, place 15 at once. Where
// both have chosen the same room the node refuses one; its owner makes another, which goes elsewhere. The last one is placed by
// hand, on a full node first. At no time do the pods that began on a node ask for more than it has.
func TestTwoSchedulersAndTwoProfilesFillNodes(t *testing.T) {
	s := embedtest.Start(t, &embed.Server{Node: embed.NodeSimulated, Nodes: 4})
	c := s.Client()
	second, err := config.Parse([]byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n" +
		"profiles:\n- schedulerName: spreading\n- schedulerName: packing\n  pluginConfig:\n  - {name: NodeResourcesFit, args: {scoringStrategy: {type: MostAllocated}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	own := builtin.SchedulerPlugins()
	second.Without(func(name string) bool {
		for _, r := range own {
			if r.Name == name {
				return true
			}
		}
		return false
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- scheduler.Run(ctx, scheduler.Options{Config: s.Config(), Plugins: own, Configuration: second})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	owned := func(name string, replicas int32) {
		labels := map[string]string{"by": name}
		if _, err := c.AppsV1().ReplicaSets("default").Create(t.Context(), &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: appsv1.ReplicaSetSpec{
				Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
				Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
					SchedulerName: name, TerminationGracePeriodSeconds: ptr.To[int64](0),
					Containers: []corev1.Container{{Name: "c", Image: "i",
						Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("8")}}}},
				}},
			},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for name, replicas := range map[string]int32{"default-scheduler": 6, "spreading": 5, "packing": 4} {
		owned(name, replicas)
	}
	full, room := "", ""
	for node, n := range awaitFilled(t, c, 15) {
		if n == 4 {
			full = node
		} else {
			room = node
		}
	}
	owned("by-hand", 1)
	unbound := func(p *corev1.Pod) bool { return p.Labels["by"] == "by-hand" && p.Spec.NodeName == "" }
	bind := func(p *corev1.Pod, node string) {
		if err := c.CoreV1().Pods("default").Bind(t.Context(), &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: p.UID}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	first := awaitAny(t, c, unbound)
	bind(first, full)
	awaitAny(t, c, func(p *corev1.Pod) bool {
		return p.UID == first.UID && p.Status.Phase == corev1.PodFailed && p.Status.Reason == "OutOfcpu"
	})
	bind(awaitAny(t, c, func(p *corev1.Pod) bool { return p.UID != first.UID && unbound(p) }), room)
	awaitFilled(t, c, 16)
}

// awaitAny waits for a pod.
func awaitAny(t *testing.T, c kubernetes.Interface, is func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), patience)
	defer stop()
	lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "pods", "default", fields.Everything())
	e, err := watchtools.UntilWithSync(ctx, lw, &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
		pod, ok := e.Object.(*corev1.Pod)
		return ok && e.Type != watch.Deleted && is(pod), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return e.Object.(*corev1.Pod)
}

// awaitFilled waits until so many pods run, and tells how many on which node; more than four never do.
func awaitFilled(t *testing.T, c kubernetes.Interface, want int) map[string]int {
	t.Helper()
	ctx, stop := context.WithTimeout(t.Context(), 2*patience)
	defer stop()
	lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "pods", "default", fields.Everything())
	pods, begun := map[types.UID]*corev1.Pod{}, map[string]int{}
	if _, err := watchtools.UntilWithSync(ctx, lw, &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
		pod, ok := e.Object.(*corev1.Pod)
		switch {
		case !ok:
			return false, nil
		case e.Type == watch.Deleted:
			delete(pods, pod.UID)
			return false, nil
		case pod.Status.Phase == corev1.PodFailed && pod.Status.Reason != "OutOfcpu":
			return false, fmt.Errorf("pod %s failed for %q", pod.Name, pod.Status.Reason)
		}
		pods[pod.UID] = pod
		clear(begun)
		running := 0
		for _, p := range pods {
			if p.Status.Phase == corev1.PodRunning {
				running++
				begun[p.Spec.NodeName]++
			}
		}
		for node, n := range begun {
			if n > 4 {
				return false, fmt.Errorf("%d pods of 8 CPUs run on node %s", n, node)
			}
		}
		return running == want, nil
	}); err != nil {
		for _, p := range pods {
			t.Logf("%s of %s on %q: %s %s", p.Name, p.Spec.SchedulerName, p.Spec.NodeName, p.Status.Phase, p.Status.Reason)
		}
		t.Fatal(err)
	}
	return begun
}

// TestABindingThatComesSecond: who binds a pod that is bound gets a conflict, and the scheduler leaves it where it is.
func TestABindingThatComesSecond(t *testing.T) {
	_, c := cluster(t)
	addNode(t, c, "a", "4")
	addPod(t, c, "p", "1", func(s *corev1.PodSpec) { s.SchedulerName = "nobody" })
	bind := func(node string) error {
		return c.CoreV1().Pods("default").Bind(t.Context(), &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: "p"}, Target: corev1.ObjectReference{Kind: "Node", Name: node},
		}, metav1.CreateOptions{})
	}
	if err := bind("a"); err != nil {
		t.Fatal(err)
	}
	if err := bind("b"); !apierrors.IsConflict(err) || !strings.Contains(err.Error(), `pod p is already assigned to node "a"`) {
		t.Errorf("the second binding: %v", err)
	}
	awaitPod(t, c, "p", on("a"))
}

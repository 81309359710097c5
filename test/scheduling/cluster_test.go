// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension/scheduler"
)

const patience = 60 * time.Second

// start starts a cluster whose scheduler is configured so, and whose nodes are nothing but objects.
func start(t *testing.T, config string, plugins map[string]scheduler.Factory) (*embed.Server, kubernetes.Interface) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "scheduler.yaml")
	const head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
	if err := os.WriteFile(file, []byte(head+config), 0o600); err != nil {
		t.Fatal(err)
	}
	s := embedtest.Start(t, &embed.Server{
		Node:        embed.NodeNone,
		Controllers: []string{"*", "-node-lifecycle-controller"}, // the nodes are silent
		APIServer:   options.APIServer{Scheduler: options.Scheduler{ConfigFile: file}},
		Extensions:  embed.Extensions{SchedulerPlugins: plugins},
	})
	return s, s.Client()
}

func addNode(t *testing.T, c kubernetes.Interface, name, cpu string, labels map[string]string) {
	t.Helper()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{"cpu": resource.MustParse(cpu), "memory": resource.MustParse("8Gi"), "pods": resource.MustParse("110")},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	n.Status.Capacity = n.Status.Allocatable
	if _, err := c.CoreV1().Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// New nodes have the not-ready taint.
	patch := []byte(`{"spec":{"taints":null}}`)
	if _, err := c.CoreV1().Nodes().Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// known waits until a scheduler knows a node, by a pod that can run nowhere else and is gone afterwards: nodes and pods are told of apart,
// so that a pod may be decided on before a node that was made before it.
func known(t *testing.T, c kubernetes.Interface, node, scheduler string) {
	t.Helper()
	addPod(t, c, "at-"+node, func(p *corev1.Pod) {
		p.Spec.SchedulerName = scheduler
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{Key: "metadata.name",
					Operator: corev1.NodeSelectorOpIn, Values: []string{node}}}}},
			}}}
	})
	awaitPod(t, c, "at-"+node, bound)
	if err := c.CoreV1().Pods("default").Delete(t.Context(), "at-"+node, *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
}

func addPod(t *testing.T, c kubernetes.Interface, name string, change func(*corev1.Pod)) {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")}},
	}}}}
	if change != nil {
		change(p)
	}
	if _, err := c.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// awaitPod waits until the pod is as is says, and returns it.
func awaitPod(t *testing.T, c kubernetes.Interface, name string, is func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "pods", "default", fields.OneTermEqualSelector("metadata.name", name))
	var last *corev1.Pod
	e, err := watchtools.UntilWithSync(ctx, lw, &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
		pod, ok := e.Object.(*corev1.Pod)
		last = pod
		return ok && is(pod), nil
	})
	if err != nil {
		if last == nil {
			t.Fatalf("await pod %s: %v; it is not there", name, err)
		}
		t.Fatalf("await pod %s: %v; it is on %q, its conditions are %+v", name, err, last.Spec.NodeName, last.Status.Conditions)
	}
	return e.Object.(*corev1.Pod)
}

func bound(p *corev1.Pod) bool { return p.Spec.NodeName != "" }

// condition is the pod's PodScheduled condition.
func condition(p *corev1.Pod) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c
		}
	}
	return corev1.PodCondition{}
}

// refused waits for a message that holds the text.
func refused(text string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		c := condition(p)
		return c.Status == corev1.ConditionFalse && strings.Contains(c.Message, text)
	}
}

// awaitEvent waits for an event about a pod, told by a scheduler.
func awaitEvent(t *testing.T, c kubernetes.Interface, pod, reason, by, note string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "events", "default", fields.Everything())
	var seen []string
	if _, err := watchtools.UntilWithSync(ctx, lw, &corev1.Event{}, nil, func(e watch.Event) (bool, error) {
		ev, ok := e.Object.(*corev1.Event)
		if ok && ev.InvolvedObject.Name == pod {
			seen = append(seen, ev.Reason+" by "+ev.ReportingController+": "+ev.Message)
		}
		return ok && ev.InvolvedObject.Name == pod && ev.Reason == reason && ev.ReportingController == by && strings.Contains(ev.Message, note),
			nil
	}); err != nil {
		t.Fatalf("await event %s of pod %s: %v; seen: %q", reason, pod, err, seen)
	}
}

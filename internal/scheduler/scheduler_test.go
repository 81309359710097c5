// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/scheduler"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

const patience = 30 * time.Second

// cluster is an API server with controllers and scheduler, and nodes that are nothing but objects.
func cluster(t *testing.T) (*embed.Server, kubernetes.Interface) {
	t.Helper()
	s := embedtest.Start(t, &embed.Server{Node: embed.NodeNone})
	c := s.Client()
	// The controllers create the account that pods run as when the server is ready already. Pods of these tests may be earlier.
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
	_, err := c.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	return s, c
}

func addNode(t *testing.T, c kubernetes.Interface, name, cpu string) {
	t.Helper()
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
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

func addPod(t *testing.T, c kubernetes.Interface, name, cpu string, change func(*corev1.PodSpec)) {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{Containers: []corev1.Container{{
		Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}},
	}}}}
	if change != nil {
		change(&p.Spec)
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
		t.Fatalf("await pod %s: %v; it is %+v", name, err, last)
	}
	return e.Object.(*corev1.Pod)
}

func on(node string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p.Spec.NodeName == node }
}

func condition(p *corev1.Pod) corev1.PodCondition {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled {
			return c
		}
	}
	return corev1.PodCondition{}
}

// refused waits for the message: at first the node's not-ready taint may still be seen.
func refused(message string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		c := condition(p)
		return c.Status == corev1.ConditionFalse && strings.HasPrefix(c.Message, message)
	}
}

func awaitEvent(t *testing.T, c kubernetes.Interface, pod, reason, note string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "events", "default", fields.Everything())
	if _, err := watchtools.UntilWithSync(ctx, lw, &corev1.Event{}, nil, func(e watch.Event) (bool, error) {
		ev, ok := e.Object.(*corev1.Event)
		return ok && ev.InvolvedObject.Name == pod && ev.Reason == reason && strings.Contains(ev.Message, note), nil
	}); err != nil {
		t.Fatalf("await event %s of pod %s: %v", reason, pod, err)
	}
}

func TestPodsAreBoundAndToldSo(t *testing.T) {
	_, c := cluster(t)
	addNode(t, c, "a", "4")
	addPod(t, c, "p", "1", nil)
	pod := awaitPod(t, c, "p", on("a"))
	if got := condition(pod); got.Status != corev1.ConditionTrue {
		t.Errorf("PodScheduled is %+v, want True", got)
	}
	awaitEvent(t, c, "p", "Scheduled", "Successfully assigned default/p to a")
}

func TestUnschedulablePodsSayWhyAndComeBack(t *testing.T) {
	_, c := cluster(t)
	addNode(t, c, "small", "1")
	addPod(t, c, "pilot", "100m", nil)
	awaitPod(t, c, "pilot", on("small")) // the scheduler knows of the node: the event has the note of the first refusal
	addPod(t, c, "big", "3", nil)
	pod := awaitPod(t, c, "big", refused(
		"0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."))
	if got := condition(pod); got.Reason != corev1.PodReasonUnschedulable {
		t.Errorf("PodScheduled is %+v", got)
	}
	awaitEvent(t, c, "big", "FailedScheduling", "0/1 nodes are available: 1 Insufficient cpu.")
	addNode(t, c, "wide", "4")
	awaitPod(t, c, "big", on("wide"))
}

func TestRoomThatAPodLeavesIsUsed(t *testing.T) {
	_, c := cluster(t)
	addNode(t, c, "a", "2")
	addPod(t, c, "first", "2", nil)
	awaitPod(t, c, "first", on("a"))
	addPod(t, c, "second", "2", nil)
	awaitPod(t, c, "second", func(p *corev1.Pod) bool { return condition(p).Status == corev1.ConditionFalse })
	none := int64(0)
	if err := c.CoreV1().Pods("default").Delete(t.Context(), "first", metav1.DeleteOptions{GracePeriodSeconds: &none}); err != nil {
		t.Fatal(err)
	}
	awaitPod(t, c, "second", on("a"))
}

func TestImportantPodsMakeRoom(t *testing.T) {
	_, c := cluster(t)
	addNode(t, c, "a", "2")
	if _, err := c.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: "high"}, Value: 100,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	none := int64(0)
	lowly := func(s *corev1.PodSpec) { s.TerminationGracePeriodSeconds = &none }
	addPod(t, c, "bystander", "500m", lowly)
	addPod(t, c, "victim", "1500m", lowly)
	awaitPod(t, c, "bystander", on("a"))
	awaitPod(t, c, "victim", on("a"))
	addPod(t, c, "important", "1500m", func(s *corev1.PodSpec) { s.PriorityClassName = "high" })
	pod := awaitPod(t, c, "important", on("a"))
	if pod.Status.NominatedNodeName != "" && pod.Status.NominatedNodeName != "a" {
		t.Errorf("nominated to %s", pod.Status.NominatedNodeName)
	}
	awaitEvent(t, c, "victim", "Preempted", "on node a")
	awaitPod(t, c, "bystander", on("a"))
}

// picky is a plug-in as others write them: it knows nothing but the framework module.
type picky struct{ handle fwk.Handle }

func newPicky(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	return &picky{h}, nil
}

func (*picky) Name() string { return "Picky" }

func (*picky) Filter(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, n fwk.NodeInfo) *fwk.Status {
	if strings.HasPrefix(n.Node().Name, "nice") {
		return nil
	}
	return fwk.NewStatus(fwk.Unschedulable, "node(s) were not nice")
}

func (p *picky) Permit(_ context.Context, _ fwk.CycleState, pod *corev1.Pod, _ string) (*fwk.Status, time.Duration) {
	go func() {
		for allowed := false; !allowed; {
			p.handle.IterateOverWaitingPods(func(w fwk.WaitingPod) {
				if w.GetPod().UID == pod.UID {
					w.Allow("Picky")
					allowed = true
				}
			})
		}
	}()
	return fwk.NewStatus(fwk.Wait), time.Minute
}

func TestSecondSchedulerWithAPluginOfItsOwn(t *testing.T) {
	s, c := cluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- scheduler.Run(ctx, scheduler.Options{
			Config: s.Config(), Name: "choosy",
			Plugins: append(builtin.SchedulerPlugins(), profile.Registration{Name: "Picky", New: newPicky}),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	addNode(t, c, "plain", "8")
	addPod(t, c, "p", "1", func(s *corev1.PodSpec) { s.SchedulerName = "choosy" })
	awaitPod(t, c, "p", refused("0/1 nodes are available: 1 node(s) were not nice."))
	addNode(t, c, "nice", "1")
	awaitPod(t, c, "p", on("nice"))
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/scheduler"
	"github.com/mortise-dev/mortise/internal/scheduler/decisionlog"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
)

// makePod makes a pod of a class, with labels and finalizers.
func makePod(t *testing.T, c kubernetes.Interface, name, cpu, class string, change func(*corev1.Pod)) {
	t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{PriorityClassName: class, Containers: []corev1.Container{{
		Name: "c", Image: "i", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"cpu": resource.MustParse(cpu)}},
	}}}}
	if change != nil {
		change(p)
	}
	if _, err := c.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// makePatientClass makes a class of pods that preempt nobody, whatever the scheduler has not heard of yet.
func makePatientClass(t *testing.T, c kubernetes.Interface, name string, value int32) {
	t.Helper()
	never := corev1.PreemptNever
	if _, err := c.SchedulingV1().PriorityClasses().Create(t.Context(), &schedulingv1.PriorityClass{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Value: value, PreemptionPolicy: &never,
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func doomed(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == corev1.PodReasonPreemptionByScheduler {
			return p.DeletionTimestamp != nil
		}
	}
	return false
}

// refusedFor waits for part of the message.
func refusedFor(part string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		c := condition(p)
		return c.Status == corev1.ConditionFalse && strings.Contains(c.Message, part)
	}
}

func nominatedTo(node string) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool { return p.Status.NominatedNodeName == node }
}

// end has a pod be gone, as its node would.
func end(t *testing.T, c kubernetes.Interface, name string) {
	t.Helper()
	none := int64(0)
	if err := c.CoreV1().Pods("default").Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &none}); err != nil {
		t.Fatal(err)
	}
}

func untouched(t *testing.T, c kubernetes.Interface, names ...string) {
	t.Helper()
	for _, name := range names {
		p, err := c.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if p.DeletionTimestamp != nil || len(p.Status.Conditions) != 1 {
			t.Errorf("pod %s has to go: deleted %v, conditions %+v", name, p.DeletionTimestamp, p.Status.Conditions)
		}
	}
}

// TestVictimsThatDoNotEnd: the pod that preempts is nominated, and waits while victims have their grace or are held by
// finalizers; it ends nobody else meanwhile, and nobody of lower priority takes what has become free for it.
func TestVictimsThatDoNotEnd(t *testing.T) {
	_, c := cluster(t)
	makeClass(t, c, "high", 100)
	makeClass(t, c, "mid", 50)
	makePatientClass(t, c, "patient", 50)
	makePatientClass(t, c, "low", 10)
	addNode(t, c, "a", "4")
	makePod(t, c, "slow", "2", "", nil) // has 30 seconds
	awaitPod(t, c, "slow", on("a"))
	makePod(t, c, "held", "2", "", func(p *corev1.Pod) {
		none := int64(0)
		p.Spec.TerminationGracePeriodSeconds, p.Finalizers = &none, []string{"example.com/holds"}
	})
	awaitPod(t, c, "held", on("a"))
	addNode(t, c, "b", "4")
	makePod(t, c, "elsewhere", "4", "low", nil)
	awaitPod(t, c, "elsewhere", on("b"))

	makePod(t, c, "important", "4", "high", nil)
	awaitPod(t, c, "important", nominatedTo("a"))
	slow := awaitPod(t, c, "slow", doomed)
	if g := slow.DeletionGracePeriodSeconds; g == nil || *g != 30 {
		t.Errorf("the victim's grace is %v, want the 30 seconds that it has", g)
	}
	awaitPod(t, c, "held", doomed)
	awaitEvent(t, c, "slow", "Preempted", "on node a")

	end(t, c, "slow")
	// The pod is tried again now, and the other victim is still there.
	awaitPod(t, c, "important", refusedFor("preemption: not eligible due to a terminating pod on the nominated node."))
	makePod(t, c, "opportunist", "2", "patient", nil)
	awaitPod(t, c, "opportunist", refused("0/2 nodes are available: 2 Insufficient cpu."))
	makePod(t, c, "greedy", "2", "mid", nil) // its victims can only be elsewhere
	awaitPod(t, c, "elsewhere", doomed)
	awaitPod(t, c, "greedy", nominatedTo("b"))
	if p := awaitPod(t, c, "important", nominatedTo("a")); p.Spec.NodeName != "" {
		t.Errorf("the pod is on %s before there is room", p.Spec.NodeName)
	}

	if _, err := c.CoreV1().Pods("default").Patch(t.Context(), "held", types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	end(t, c, "elsewhere")
	awaitPod(t, c, "important", on("a"))
	awaitPod(t, c, "greedy", on("b"))
	awaitPod(t, c, "opportunist", on("b"))
}

// listening is a plug-in that tells when its scheduler has heard of a disruption budget's state.
type listening struct{ heard chan struct{} }

func (listening) Name() string                                                  { return "Listening" }
func (listening) PostBind(context.Context, fwk.CycleState, *corev1.Pod, string) {}

func (l listening) make(_ context.Context, _ runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
	once := sync.OnceFunc(func() { close(l.heard) })
	look := func(obj any) {
		if b, ok := obj.(*policyv1.PodDisruptionBudget); ok && b.Status.ObservedGeneration > 0 && b.Status.ExpectedPods == 1 {
			once()
		}
	}
	_, err := h.SharedInformerFactory().Policy().V1().PodDisruptionBudgets().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: look, UpdateFunc: func(_, obj any) { look(obj) },
	})
	return l, err
}

// TestBudgetsAreSpared: a node where no budget is hurt is chosen though its victim is more important; the victim behind a
// budget is taken where there is no other way.
func TestBudgetsAreSpared(t *testing.T) {
	s, c := cluster(t)
	l, decisions := listening{make(chan struct{})}, decisionlog.New(decisionlog.Options{})
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what was decided about the first: %+v", decisions.Scheduling("default", "first"))
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- scheduler.Run(ctx, scheduler.Options{
			Config: s.Config(), Name: "listening", Decisions: decisions,
			Plugins: append(builtin.SchedulerPlugins(), profile.Registration{Name: "Listening", New: l.make}),
		})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	makeClass(t, c, "high", 100)
	makePatientClass(t, c, "low", 10)
	by := func(change func(*corev1.Pod)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.SchedulerName = "listening"
			if change != nil {
				change(p)
			}
		}
	}
	minimum := intstr.FromInt32(1)
	if _, err := c.PolicyV1().PodDisruptionBudgets("default").Create(t.Context(), &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &minimum,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "db"}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	addNode(t, c, "a", "4")
	makePod(t, c, "guarded", "4", "", by(func(p *corev1.Pod) { p.Labels = map[string]string{"app": "db"} }))
	awaitPod(t, c, "guarded", on("a"))
	addNode(t, c, "b", "4")
	makePod(t, c, "free", "4", "low", by(nil))
	awaitPod(t, c, "free", on("b"))
	select {
	case <-l.heard:
	case <-time.After(patience):
		t.Fatal("the scheduler has not heard of the budget")
	}

	makePod(t, c, "first", "4", "high", by(nil))
	awaitPod(t, c, "first", nominatedTo("b"))
	awaitPod(t, c, "free", doomed)
	untouched(t, c, "guarded")
	end(t, c, "free")
	awaitPod(t, c, "first", on("b"))

	makePod(t, c, "second", "4", "high", by(nil))
	awaitPod(t, c, "second", nominatedTo("a"))
	awaitPod(t, c, "guarded", doomed)
	untouched(t, c, "first")
	end(t, c, "guarded")
	awaitPod(t, c, "second", on("a"))
}

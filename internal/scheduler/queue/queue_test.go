// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package queue_test

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/queue"
)

// profile is a profile of two plug-ins: Big waits for new nodes that are labelled big, Gate holds back pods labelled so.
type profile struct{}

func (profile) RunPreEnqueue(_ context.Context, pod *corev1.Pod) *fwk.Status {
	if pod.Labels["gated"] != "" {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "gated").WithPlugin("Gate")
	}
	return nil
}

func (profile) Signature(context.Context, *corev1.Pod) fwk.PodSignature { return nil }
func (profile) QueueSort() fwk.QueueSortPlugin                          { return byPriority{} }

func (profile) Events() map[string][]fwk.ClusterEventWithHint {
	return map[string][]fwk.ClusterEventWithHint{
		"Big": {{
			Event: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add},
			QueueingHintFn: func(_ klog.Logger, _ *corev1.Pod, _, obj any) (fwk.QueueingHint, error) {
				if obj.(*corev1.Node).Labels["big"] != "" {
					return fwk.Queue, nil
				}
				return fwk.QueueSkip, nil
			},
		}},
		"Gate": {{Event: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodLabel}}},
	}
}

type byPriority struct{}

func (byPriority) Name() string { return "ByPriority" }
func (byPriority) Less(a, b fwk.QueuedEntityInfo) bool {
	if a.GetPriority() != b.GetPriority() {
		return a.GetPriority() > b.GetPriority()
	}
	return a.GetTimestamp().Before(b.GetTimestamp())
}

func pod(name string, priority int32) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec:       corev1.PodSpec{SchedulerName: "s", Priority: &priority},
	}
}

func node(big bool) queue.Event {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	if big {
		n.Labels = map[string]string{"big": "yes"}
	}
	return queue.Event{ClusterEvent: fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}, New: n}
}

// bubble runs f with a queue, and a pop that says what comes at which second, or nothing within so many.
func bubble(t *testing.T, f func(t *testing.T, q *queue.Queue, pop func(within time.Duration) (*queue.Item, time.Duration))) {
	synctest.Test(t, func(t *testing.T) {
		q := queue.New(map[string]queue.Profile{"s": profile{}}, queue.Options{})
		defer q.Close()
		f(t, q, func(within time.Duration) (*queue.Item, time.Duration) {
			t.Helper()
			begin := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), within)
			defer cancel()
			item, err := q.Pop(ctx)
			if err != nil {
				return nil, time.Since(begin)
			}
			return item, time.Since(begin)
		})
	})
}

func reject(t *testing.T, q *queue.Queue, item *queue.Item) {
	t.Helper()
	item.UnschedulablePlugins = sets.New("Big")
	q.Failed(t.Context(), item, item.Pod)
}

func TestHighestPriorityFirstThenOldest(t *testing.T) {
	bubble(t, func(t *testing.T, q *queue.Queue, pop func(time.Duration) (*queue.Item, time.Duration)) {
		for _, p := range []*corev1.Pod{pod("low", 1), pod("high", 9)} {
			q.Add(t.Context(), p)
		}
		time.Sleep(time.Second)
		q.Add(t.Context(), pod("late", 9))
		for _, want := range []string{"high", "late", "low"} {
			item, _ := pop(time.Second)
			if item == nil || item.Pod.Name != want {
				t.Fatalf("popped %v, want %s", item, want)
			}
			q.Done(item.Pod)
		}
	})
}

func TestOnlyEventsThatHelpMove(t *testing.T) {
	bubble(t, func(t *testing.T, q *queue.Queue, pop func(time.Duration) (*queue.Item, time.Duration)) {
		q.Add(t.Context(), pod("a", 1))
		item, _ := pop(time.Second)
		reject(t, q, item)
		q.MoveOnEvent(t.Context(), node(false))
		if item, _ := pop(time.Minute); item != nil {
			t.Fatal("a small node moved the pod")
		}
		q.MoveOnEvent(t.Context(), node(true))
		if item, after := pop(time.Minute); item == nil || after > 0 {
			t.Fatalf("a big node did not move the pod at once: %v after %v", item, after)
		}
	})
}

func TestEventDuringFlightIsNotMissed(t *testing.T) {
	bubble(t, func(t *testing.T, q *queue.Queue, pop func(time.Duration) (*queue.Item, time.Duration)) {
		q.Add(t.Context(), pod("a", 1))
		item, _ := pop(time.Second)
		q.MoveOnEvent(t.Context(), node(true))
		reject(t, q, item)
		if item, after := pop(time.Minute); item == nil || after > 0 {
			t.Fatalf("popped %v after %v, want the pod at once: nothing else is to be done", item, after)
		}
	})
}

func TestBackoffYieldsToActivePods(t *testing.T) {
	bubble(t, func(t *testing.T, q *queue.Queue, pop func(time.Duration) (*queue.Item, time.Duration)) {
		q.Add(t.Context(), pod("urgent", 9))
		item, _ := pop(time.Second)
		reject(t, q, item)
		q.MoveOnEvent(t.Context(), node(true))
		q.Add(t.Context(), pod("humble", 1))
		if item, _ := pop(time.Second); item == nil || item.Pod.Name != "humble" {
			t.Fatalf("popped %v, want the pod that is not backing off", item)
		}
		time.Sleep(2 * time.Second)
		q.Add(t.Context(), pod("humble too", 1))
		if item, _ := pop(time.Second); item == nil || item.Pod.Name != "urgent" {
			t.Fatalf("popped %v, want the one whose backoff is over", item)
		}
	})
}

func TestErrorsWaitLongerEachTime(t *testing.T) {
	bubble(t, func(t *testing.T, q *queue.Queue, pop func(time.Duration) (*queue.Item, time.Duration)) {
		q.Add(t.Context(), pod("a", 1))
		item, _ := pop(time.Second)
		for _, want := range []time.Duration{1, 2, 4, 8, 10, 10} {
			q.Failed(t.Context(), item, item.Pod)
			var after time.Duration
			if item, after = pop(time.Minute); item == nil || after != want*time.Second {
				t.Fatalf("popped %v after %v, want it after %v s", item, after, int64(want))
			}
		}
	})
}

func TestWhatWaitsLongIsTriedAgain(t *testing.T) {
	bubble(t, func(t *testing.T, q *queue.Queue, pop func(time.Duration) (*queue.Item, time.Duration)) {
		q.Add(t.Context(), pod("a", 1))
		item, _ := pop(time.Second)
		reject(t, q, item)
		if item, after := pop(time.Hour); item == nil || after != 5*time.Minute {
			t.Fatalf("popped %v after %v, want it after five minutes", item, after)
		}
	})
}

func TestGateHoldsUntilThePodChanges(t *testing.T) {
	bubble(t, func(t *testing.T, q *queue.Queue, pop func(time.Duration) (*queue.Item, time.Duration)) {
		gated := pod("a", 1)
		gated.Labels = map[string]string{"gated": "yes"}
		q.Add(t.Context(), gated)
		q.MoveOnEvent(t.Context(), node(true))
		if item, _ := pop(time.Hour); item != nil {
			t.Fatal("a gated pod came out")
		}
		if _, _, _, n := q.Counts(); n != 1 {
			t.Fatalf("%d pods are gated, want 1", n)
		}
		open := pod("a", 1)
		q.Update(t.Context(), gated, open, []queue.Event{{ClusterEvent: fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: fwk.UpdatePodLabel},
			Old: gated, New: open}})
		if item, after := pop(time.Minute); item == nil || after > 0 {
			t.Fatalf("popped %v after %v, want the pod at once", item, after)
		}
	})
}

func TestDeletedPodsDoNotComeBack(t *testing.T) {
	bubble(t, func(t *testing.T, q *queue.Queue, pop func(time.Duration) (*queue.Item, time.Duration)) {
		q.Add(t.Context(), pod("a", 1))
		q.Delete(pod("a", 1))
		q.Add(t.Context(), pod("b", 1))
		item, _ := pop(time.Second)
		reject(t, q, item)
		q.Delete(item.Pod)
		q.MoveOnEvent(t.Context(), node(true))
		if item, _ := pop(time.Hour); item != nil {
			t.Fatalf("popped %s, which is deleted", item.Pod.Name)
		}
	})
}

func TestNominations(t *testing.T) {
	q := queue.New(map[string]queue.Profile{"s": profile{}}, queue.Options{})
	defer q.Close()
	p := pod("a", 1)
	p.Status.NominatedNodeName = "n"
	q.Add(t.Context(), p)
	if got := q.NominatedPodsForNode("n"); len(got) != 1 || !q.AnyNominated() {
		t.Fatalf("nominated to n: %v, want the pod", got)
	}
	q.Delete(p)
	if q.AnyNominated() {
		t.Fatal("a deleted pod is nominated")
	}
}

// TestGatedWhileItWaits: what holds a pod back counts when an event would let it be tried, and when it is activated; what it was rejected
// by before is not forgotten meanwhile.
func TestGatedWhileItWaits(t *testing.T) {
	bubble(t, func(t *testing.T, q *queue.Queue, pop func(time.Duration) (*queue.Item, time.Duration)) {
		p := pod("a", 0)
		q.Add(t.Context(), p)
		item, _ := pop(time.Second)
		item.UnschedulablePlugins = sets.New("Big")
		gated := p.DeepCopy()
		gated.Labels = map[string]string{"gated": "yes"}
		q.Failed(t.Context(), item, gated)
		q.MoveOnEvent(t.Context(), node(true))
		if _, backoff, _, held := q.Counts(); backoff != 0 || held != 1 {
			t.Errorf("%d pods back off and %d are gated, want 0 and 1", backoff, held)
		}
		q.Activate(klog.Logger{}, map[string]*corev1.Pod{"ns/a": gated})
		q.MoveOnEvent(t.Context(), node(true)) // which does not concern what gates it
		if item, _ := pop(time.Minute); item != nil {
			t.Errorf("pod %s is to be tried while it is gated", item.Pod.Name)
		}
		if !item.UnschedulablePlugins.HasAll("Big", "Gate") {
			t.Errorf("it was rejected by %v", item.UnschedulablePlugins)
		}
	})
}

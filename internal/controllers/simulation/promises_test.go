// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulation_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

// promises are what the controllers promise, whatever goes wrong.
type promises struct {
	most  map[string]int32    // what was asked for at most since all was last as it should be
	sizes map[types.UID]int32 // of replica sets
}

func (p *promises) atMost(what string, n int32) int32 {
	p.most[what] = max(p.most[what], n)
	return p.most[what]
}

func active(pod corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed
}

func ownedBy(o metav1.Object, uid types.UID) bool {
	ref := metav1.GetControllerOf(o)
	return ref != nil && ref.UID == uid
}

func podsOf(w *controllertest.World, uid types.UID, which func(corev1.Pod) bool) (found []corev1.Pod) {
	for _, pod := range controllertest.All[*corev1.PodList](w, podsResource, "Pod").Items {
		if ownedBy(&pod, uid) && which(pod) {
			found = append(found, pod)
		}
	}
	return found
}

// check is asked after each change, while nobody writes.
func (p *promises) check(w *controllertest.World, event controllertest.Event) string {
	switch o := event.Object.(type) {
	case *appsv1.Deployment:
		surge := int32(0)
		if r := o.Spec.Strategy.RollingUpdate; r != nil {
			surge = r.MaxSurge.IntVal
		}
		p.atMost("deployment "+string(o.UID), *o.Spec.Replicas+surge)
	case *appsv1.ReplicaSet:
		p.atMost("set "+string(o.UID), *o.Spec.Replicas)
		return cmp.Or(p.available(w, o), p.surge(w, o))
	case *batchv1.Job:
		if event.Type == watch.Added {
			return p.alone(w, o)
		}
	case *corev1.Pod:
		if event.Type == watch.Added {
			return cmp.Or(p.order(w, event.Type, o), p.room(w, o))
		}
		return p.order(w, event.Type, o)
	}
	return ""
}

// surge: the replica sets of a deployment ask for no more pods than it may have.
func (p *promises) surge(w *controllertest.World, rs *appsv1.ReplicaSet) string {
	ref := metav1.GetControllerOf(rs)
	if ref == nil {
		return ""
	}
	most, known := p.most["deployment "+string(ref.UID)]
	sum := int32(0)
	for _, set := range controllertest.All[*appsv1.ReplicaSetList](w, setsResource, "ReplicaSet").Items {
		if ownedBy(&set, ref.UID) && set.DeletionTimestamp == nil {
			sum += *set.Spec.Replicas
		}
	}
	if known && sum > most {
		return fmt.Sprintf("the replica sets of %s ask for %d pods, at most %d may be", ref.Name, sum, most)
	}
	return ""
}

// alone: of a cron job that forbids it no two jobs run at a time.
func (p *promises) alone(w *controllertest.World, added *batchv1.Job) string {
	ref := metav1.GetControllerOf(added)
	if ref == nil {
		return ""
	}
	var running []string
	for _, j := range controllertest.All[*batchv1.JobList](w, jobsResource, "Job").Items {
		if ownedBy(&j, ref.UID) && !ended(j) {
			running = append(running, j.Name)
		}
	}
	if len(running) > 1 {
		return fmt.Sprintf("jobs of %s run at a time: %v", ref.Name, running)
	}
	return ""
}

func ended(j batchv1.Job) bool {
	return slices.ContainsFunc(j.Status.Conditions, func(c batchv1.JobCondition) bool {
		return (c.Type == batchv1.JobComplete || c.Type == batchv1.JobFailed) && c.Status == corev1.ConditionTrue
	})
}

// room: a pod that comes is not one too many.
func (p *promises) room(w *controllertest.World, pod *corev1.Pod) string {
	ref := metav1.GetControllerOf(pod)
	if ref == nil {
		return fmt.Sprintf("pod %s has no owner", pod.Name)
	}
	switch ref.Kind {
	case "ReplicaSet":
		if n, most := len(podsOf(w, ref.UID, active)), p.most["set "+string(ref.UID)]; n > int(most) {
			return fmt.Sprintf("replica set %s has %d pods, at most %d were asked for", ref.Name, n, most)
		}
	case "Job":
		if n := len(podsOf(w, ref.UID, active)); n > 3 {
			return fmt.Sprintf("job %s has %d pods, at most 3 may run at a time", ref.Name, n)
		}
	case "DaemonSet":
		node := target(*pod)
		on := podsOf(w, ref.UID, func(other corev1.Pod) bool {
			return target(other) == node && other.Status.Phase != corev1.PodFailed && other.Status.Phase != corev1.PodSucceeded
		})
		most := 1
		for _, set := range controllertest.All[*appsv1.DaemonSetList](w, daemonSetsResource, "DaemonSet").Items {
			if set.UID == ref.UID && set.Spec.UpdateStrategy.RollingUpdate.MaxSurge.IntVal > 0 {
				most = 2
				on = slices.DeleteFunc(on, func(other corev1.Pod) bool { return other.DeletionTimestamp != nil })
			}
		}
		if len(on) > most {
			return fmt.Sprintf("daemon set %s has %d pods on %s", ref.Name, len(on), node)
		}
	}
	return ""
}

func target(pod corev1.Pod) string {
	return pod.Spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms[0].MatchFields[0].Values[0]
}

// kept tells what has not come about yet; nothing: all has. Then what is asked for at most is what is asked for now.
func (p *promises) kept(w *controllertest.World) string {
	return w.Locked(func() string {
		var lacks []string
		lack := func(format string, args ...any) { lacks = append(lacks, fmt.Sprintf(format, args...)) }
		owners := map[types.UID]bool{}
		for _, d := range controllertest.All[*appsv1.DeploymentList](w, deploymentsResource, "Deployment").Items {
			owners[d.UID] = true
			n, s := *d.Spec.Replicas, d.Status
			if s.ObservedGeneration != d.Generation || s.Replicas != n || s.UpdatedReplicas != n || s.AvailableReplicas != n {
				lack("deployment of %d: %+v", n, s)
			}
		}
		for _, rs := range controllertest.All[*appsv1.ReplicaSetList](w, setsResource, "ReplicaSet").Items {
			owners[rs.UID] = true
			if ref := metav1.GetControllerOf(&rs); rs.Name != "guarded" && (ref == nil || !owners[ref.UID]) {
				lack("replica set %s is an orphan", rs.Name)
			}
			if n, pods := *rs.Spec.Replicas, podsOf(w, rs.UID, active); rs.Status.Replicas != n || len(pods) != int(n) {
				lack("replica set of %d has %d pods: %+v", n, len(pods), rs.Status)
			}
		}
		for _, set := range controllertest.All[*appsv1.StatefulSetList](w, statefulSetsResource, "StatefulSet").Items {
			owners[set.UID] = true
			n, s := *set.Spec.Replicas, set.Status
			if s.ObservedGeneration != set.Generation || s.Replicas != n || s.UpdatedReplicas != n || s.AvailableReplicas != n ||
				s.CurrentRevision != s.UpdateRevision {
				lack("stateful set of %d: %+v", n, s)
			}
			for i := range n {
				if pods := podsOf(w, set.UID, func(pod corev1.Pod) bool { return pod.Name == fmt.Sprintf("db-%d", i) && active(pod) }); len(pods) != 1 {
					lack("%d pods of ordinal %d", len(pods), i)
				}
			}
		}
		for _, set := range controllertest.All[*appsv1.DaemonSetList](w, daemonSetsResource, "DaemonSet").Items {
			owners[set.UID] = true
			n := int32(0)
			for _, node := range controllertest.All[*corev1.NodeList](w, nodesResource, "Node").Items {
				if len(node.Spec.Taints) == 0 {
					n++
				}
			}
			s := set.Status
			if s.ObservedGeneration != set.Generation || s.DesiredNumberScheduled != n || s.CurrentNumberScheduled != n ||
				s.UpdatedNumberScheduled != n ||
				s.NumberAvailable != n || s.NumberMisscheduled != 0 || len(podsOf(w, set.UID, active)) != int(n) {
				lack("daemon set for %d nodes: %+v", n, s)
			}
		}
		for _, c := range controllertest.All[*batchv1.CronJobList](w, cronJobsResource, "CronJob").Items {
			owners[c.UID] = true
		}
		for _, j := range controllertest.All[*batchv1.JobList](w, jobsResource, "Job").Items {
			owners[j.UID] = true
			if j.Name == "work" && (!ended(j) || j.Status.Succeeded != *j.Spec.Completions || j.Status.Active != 0) {
				lack("job: %+v", j.Status)
			}
			if ref := metav1.GetControllerOf(&j); ref != nil && !owners[ref.UID] {
				lack("job %s is an orphan", j.Name)
			}
		}
		for _, b := range controllertest.All[*policyv1.PodDisruptionBudgetList](w, budgetsResource, "PodDisruptionBudget").Items {
			if s := b.Status; s.ObservedGeneration != b.Generation || s.ExpectedPods != guarded || s.CurrentHealthy != guarded ||
				s.DesiredHealthy != wanted(&b) || s.DisruptionsAllowed != guarded-wanted(&b) {
				lack("budget of %d: %+v", wanted(&b), s)
			}
		}
		for _, pod := range controllertest.All[*corev1.PodList](w, podsResource, "Pod").Items {
			ref := metav1.GetControllerOf(&pod)
			switch {
			case ref == nil || !owners[ref.UID]:
				lack("pod %s is an orphan", pod.Name)
			case ref.Kind == "Job" && ref.Name != "work": // there is always one that runs
			case pod.DeletionTimestamp != nil:
				lack("pod %s is going", pod.Name)
			case ref.Name == "work" && len(pod.Finalizers) > 0:
				lack("pod %s keeps %v", pod.Name, pod.Finalizers)
			}
		}
		if len(lacks) == 0 {
			p.most = map[string]int32{}
			for _, d := range controllertest.All[*appsv1.DeploymentList](w, deploymentsResource, "Deployment").Items {
				p.check(w, controllertest.Event{Type: watch.Modified, Object: &d})
			}
			for _, rs := range controllertest.All[*appsv1.ReplicaSetList](w, setsResource, "ReplicaSet").Items {
				p.atMost("set "+string(rs.UID), *rs.Spec.Replicas)
			}
		}
		return strings.Join(lacks, "; ")
	})
}

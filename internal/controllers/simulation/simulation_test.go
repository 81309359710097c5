// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulation_test

import (
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
	"github.com/mortise-dev/mortise/internal/controllers/cronjob"
	"github.com/mortise-dev/mortise/internal/controllers/daemonset"
	"github.com/mortise-dev/mortise/internal/controllers/deployment"
	"github.com/mortise-dev/mortise/internal/controllers/disruption"
	"github.com/mortise-dev/mortise/internal/controllers/job"
	"github.com/mortise-dev/mortise/internal/controllers/replicaset"
	"github.com/mortise-dev/mortise/internal/controllers/statefulset"
)

var (
	simulations = flag.Int("simulations", 200, "how many seeds TestSimulation tries")
	twice       = flag.Bool("simulations.twice", false, "play each seed twice: it has to tell one story")
	firstSeed   = flag.Uint64("simulations.seed", 1, "the first of them")
)

var (
	deploymentsResource  = appsv1.SchemeGroupVersion.WithResource("deployments")
	setsResource         = appsv1.SchemeGroupVersion.WithResource("replicasets")
	statefulSetsResource = appsv1.SchemeGroupVersion.WithResource("statefulsets")
	daemonSetsResource   = appsv1.SchemeGroupVersion.WithResource("daemonsets")
	jobsResource         = batchv1.SchemeGroupVersion.WithResource("jobs")
	cronJobsResource     = batchv1.SchemeGroupVersion.WithResource("cronjobs")
	podsResource         = corev1.SchemeGroupVersion.WithResource("pods")
	budgetsResource      = policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")
	nodesResource        = corev1.SchemeGroupVersion.WithResource("nodes")
)

// TestSimulation has users ask for this and that while all goes wrong that can, and wants what the controllers promise to hold at
// each moment, and what was asked for to come about.
func TestSimulation(t *testing.T) {
	all := []controllers.Controller{
		deployment.Controller(), replicaset.Controller(), statefulset.Controller(), daemonset.Controller(), job.Controller(),
		cronjob.Controller(),
		disruption.Controller(),
	}
	for seed := *firstSeed; seed < *firstSeed+uint64(*simulations); seed++ {
		var story uint64
		simulate := func(steps []controllertest.Step) (wrong string) {
			p := &promises{most: map[string]int32{}, sizes: map[types.UID]int32{}}
			wrong, story = controllertest.Simulate(t, seed, all, steps, p.check, p.kept)
			return wrong
		}
		steps := wishes(seed)
		wrong := simulate(steps)
		if *twice {
			before := story
			if simulate(steps); story != before {
				t.Errorf("seed %d told two stories", seed)
			}
		}
		if wrong == "" {
			continue
		}
		steps = controllertest.Shortest(steps, func(fewer []controllertest.Step) bool { return simulate(fewer) != "" })
		if again := simulate(steps); again != "" {
			wrong = again
		}
		var names []string
		for _, s := range steps {
			names = append(names, s.Name)
		}
		t.Fatalf("seed %d (run again with -simulations 1 -simulations.seed %d), steps: %s\n%s", seed, seed, strings.Join(names, "; "), wrong)
	}
}

func template(app, image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}},
	}
}

func selector(app string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}
}

func number(n int32) *int32 { return &n }

// wishes are what users do; the names and the world's seed say all about them.
func wishes(seed uint64) []controllertest.Step {
	one, zero := intstr.FromInt32(1), intstr.FromInt32(0)
	put := func(name string, gvr schema.GroupVersionResource, make func(w *controllertest.World) runtime.Object) controllertest.Step {
		return controllertest.Step{Name: name, Do: func(w *controllertest.World) {
			namespace := "default"
			if gvr == nodesResource {
				namespace = ""
			}
			w.Put(gvr, namespace, make(w))
		}}
	}
	steps := []controllertest.Step{
		put("node n1", nodesResource, func(*controllertest.World) runtime.Object {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		}),
		put("node n2", nodesResource, func(*controllertest.World) runtime.Object {
			return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}}
		}),
	}
	makers := []controllertest.Step{
		put("deployment", deploymentsResource, func(w *controllertest.World) runtime.Object {
			strategy := appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one, MaxUnavailable: &one}}
			if w.Chance(4, "recreate") == 0 {
				strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
			}
			return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
				Replicas: number(int32(w.Chance(5, "size"))), Selector: selector("web"), Template: template("web", "v0"),
				Strategy: strategy, RevisionHistoryLimit: number(2), ProgressDeadlineSeconds: number(600),
			}}
		}),
		put("stateful set", statefulSetsResource, func(w *controllertest.World) runtime.Object {
			set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{
				Replicas: number(int32(w.Chance(4, "members"))), Selector: selector("db"), Template: template("db", "v0"),
				RevisionHistoryLimit: number(2),
				PodManagementPolicy:  appsv1.OrderedReadyPodManagement,
				UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
					RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{Partition: number(0)}},
			}}
			if w.Chance(3, "parallel") == 0 {
				set.Spec.PodManagementPolicy = appsv1.ParallelPodManagement
			}
			return set
		}),
		put("daemon set", daemonSetsResource, func(w *controllertest.World) runtime.Object {
			limits := &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &one, MaxSurge: &zero}
			if w.Chance(3, "surge") == 0 {
				limits = &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &zero, MaxSurge: &one}
			}
			return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "log"}, Spec: appsv1.DaemonSetSpec{
				Selector: selector("log"), Template: template("log", "v0"), RevisionHistoryLimit: number(2),
				UpdateStrategy: appsv1.DaemonSetUpdateStrategy{Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: limits},
			}}
		}),
		put("job", jobsResource, func(w *controllertest.World) runtime.Object {
			mode := batchv1.NonIndexedCompletion
			if w.Chance(2, "indexed") == 0 {
				mode = batchv1.IndexedCompletion
			}
			t := template("work", "v0")
			t.Spec.RestartPolicy = corev1.RestartPolicyNever
			return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "work"}, Spec: batchv1.JobSpec{
				Completions: number(6), Parallelism: number(3), BackoffLimit: number(100), CompletionMode: &mode, Selector: selector("work"),
				Template: t,
			}}
		}),
		put("cron job", cronJobsResource, func(*controllertest.World) runtime.Object {
			t := template("tick", "v0")
			t.Spec.RestartPolicy = corev1.RestartPolicyNever
			return &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "tick"}, Spec: batchv1.CronJobSpec{
				Schedule: "* * * * *", ConcurrencyPolicy: batchv1.ForbidConcurrent, SuccessfulJobsHistoryLimit: number(1),
				FailedJobsHistoryLimit: number(1),
				JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{
					Completions: number(1), Parallelism: number(1), BackoffLimit: number(100), Selector: selector("tick"), Template: t,
				}},
			}}
		}),
	}
	makers = append(makers, controllertest.Step{Name: "budget", Do: func(w *controllertest.World) {
		w.Put(setsResource, "default", &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: "guarded"}, Spec: appsv1.ReplicaSetSpec{
			Replicas: number(guarded), Selector: selector("guarded"), Template: template("guarded", "v0"),
		}})
		w.Put(budgetsResource, "default", budget("first", w))
	}})
	changes := []func(i int) controllertest.Step{
		func(i int) controllertest.Step {
			return changeDeployment(fmt.Sprintf("scale deployment %d", i), 7, func(d *appsv1.Deployment, n int) {
				d.Spec.Replicas = number(int32(n))
			})
		},
		func(i int) controllertest.Step {
			return changeDeployment(fmt.Sprintf("roll deployment %d", i), 3, func(d *appsv1.Deployment, n int) {
				d.Spec.Template.Spec.Containers[0].Image = fmt.Sprintf("v%d", n)
			})
		},
		func(i int) controllertest.Step {
			return controllertest.Step{Name: fmt.Sprintf("change stateful set %d", i), Do: func(w *controllertest.World) {
				n, image := int32(w.Chance(4, "members")), fmt.Sprintf("v%d", w.Chance(3, "image"))
				w.Change(statefulSetsResource, "default", "db", "", func(o runtime.Object) {
					set := o.(*appsv1.StatefulSet)
					set.Spec.Replicas, set.Spec.Template.Spec.Containers[0].Image = &n, image
				})
			}}
		},
		func(i int) controllertest.Step {
			return controllertest.Step{Name: fmt.Sprintf("roll daemon set %d", i), Do: func(w *controllertest.World) {
				image := fmt.Sprintf("v%d", w.Chance(3, "image"))
				w.Change(daemonSetsResource, "default", "log", "", func(o runtime.Object) {
					o.(*appsv1.DaemonSet).Spec.Template.Spec.Containers[0].Image = image
				})
			}}
		},
		func(i int) controllertest.Step {
			return controllertest.Step{Name: fmt.Sprintf("taint %d", i), Do: func(w *controllertest.World) {
				w.Change(nodesResource, "", "n2", "", func(o runtime.Object) {
					node := o.(*corev1.Node)
					if len(node.Spec.Taints) > 0 {
						node.Spec.Taints = nil
						return
					}
					node.Spec.Taints = []corev1.Taint{{Key: "away", Effect: corev1.TaintEffectNoExecute}}
				})
			}}
		},
		func(i int) controllertest.Step {
			return controllertest.Step{Name: fmt.Sprintf("delete a pod %d", i), Do: func(w *controllertest.World) {
				pick, name := w.Chance(1000, "pick"), ""
				w.Locked(func() string {
					pods := controllertest.All[*corev1.PodList](w, podsResource, "Pod").Items
					pods = slices.DeleteFunc(pods, func(pod corev1.Pod) bool { return pod.Labels["app"] == "guarded" }) // they are evicted only
					if len(pods) > 0 {
						name = pods[pick%len(pods)].Name
					}
					return ""
				})
				w.Remove(podsResource, "default", name)
			}}
		},
		func(i int) controllertest.Step {
			return controllertest.Step{Name: fmt.Sprintf("drain %d", i), Do: drain}
		},
		func(i int) controllertest.Step {
			return controllertest.Step{Name: fmt.Sprintf("drain again %d", i), Do: drain}
		},
		func(i int) controllertest.Step {
			return controllertest.Step{Name: fmt.Sprintf("change budget %d", i), Do: func(w *controllertest.World) {
				next := budget("budget", w).Spec
				w.Change(budgetsResource, "default", "guarded", "", func(o runtime.Object) { o.(*policyv1.PodDisruptionBudget).Spec = next })
			}}
		},
		func(i int) controllertest.Step {
			return controllertest.Step{Name: fmt.Sprintf("delete deployment %d", i), Do: func(w *controllertest.World) {
				w.Remove(deploymentsResource, "default", "web")
			}}
		},
	}
	next := seed
	for i := range 9 {
		next = next*6364136223846793005 + 1442695040888963407
		if i < len(makers) {
			steps = append(steps, makers[i])
		}
		steps = append(steps, changes[int(next>>33)%len(changes)](i))
	}
	return steps
}

func changeDeployment(name string, below int, change func(d *appsv1.Deployment, n int)) controllertest.Step {
	return controllertest.Step{Name: name, Do: func(w *controllertest.World) {
		n := w.Chance(below, name)
		w.Change(deploymentsResource, "default", "web", "", func(o runtime.Object) { change(o.(*appsv1.Deployment), n) })
	}}
}

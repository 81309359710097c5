// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// TestRolloutAfterKills: a server that is killed again and again while a Deployment and a StatefulSet roll over and are scaled, and a
// Job runs, each time after as many of the pods' events as chance says, ends with what one that was never killed ends with.
func TestRolloutAfterKills(t *testing.T) {
	dir := t.TempDir()
	seed := uint64(time.Now().UnixNano())
	chance := rand.New(rand.NewPCG(seed, 0))
	t.Logf("seed %d", seed)
	// The deployment's size in each round; the last one is not killed.
	sizes := []int32{12, 20, 8, 16}
	const members, indexes = 3, 20
	for round, replicas := range sizes {
		p := up(t, dir, "--node", "simulated", "--nodes", "3")
		c := p.client()
		image := fmt.Sprintf("example.com/web:%d", round)
		pods, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if round == 0 {
			err = makeWorkloads(t.Context(), c, image, replicas, members, indexes)
		} else {
			err = rollWorkloads(t.Context(), c, image, replicas)
		}
		if err != nil {
			t.Fatal(err)
		}
		if round < len(sizes)-1 {
			// Each of the new template's pods comes, is bound and starts: there are more events than are asked for.
			outlive(t, c, pods.ResourceVersion, 1+chance.IntN(2*int(replicas)))
			p.kill()
			continue
		}
		checkDeployment(t, c, image, replicas)
		checkStatefulSet(t, c, image, members)
		checkJob(t, c, indexes)
	}
}

func makeWorkloads(ctx context.Context, c kubernetes.Interface, image string, replicas, members, indexes int32) error {
	if _, err := c.AppsV1().Deployments("default").Create(ctx, rolling("web", image, replicas), metav1.CreateOptions{}); err != nil {
		return err
	}
	template := rolling("db", image, 0).Spec.Template
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"}, Spec: appsv1.StatefulSetSpec{
		Replicas: &members, Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template,
	}}
	if _, err := c.AppsV1().StatefulSets("default").Create(ctx, set, metav1.CreateOptions{}); err != nil {
		return err
	}
	template = rolling("work", image, 0).Spec.Template
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	mode, parallelism := batchv1.IndexedCompletion, int32(4)
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: "work"}, Spec: batchv1.JobSpec{
		Completions: &indexes, Parallelism: &parallelism, CompletionMode: &mode, Template: template,
	}}
	_, err := c.BatchV1().Jobs("default").Create(ctx, job, metav1.CreateOptions{})
	return err
}

func rollWorkloads(ctx context.Context, c kubernetes.Interface, image string, replicas int32) error {
	container := fmt.Sprintf(`{"template":{"spec":{"containers":[{"name":"c","image":%q}]}}}`, image)
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d,%s}`, replicas, container[1:])
	if _, err := c.AppsV1().Deployments("default").Patch(ctx, "web", types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return err
	}
	_, err := c.AppsV1().StatefulSets("default").Patch(ctx, "db", types.StrategicMergePatchType, fmt.Appendf(nil, `{"spec":%s}`, container),
		metav1.PatchOptions{})
	return err
}

func checkDeployment(t *testing.T, c kubernetes.Interface, image string, replicas int32) {
	t.Helper()
	awaitNamed(t, c.AppsV1().RESTClient(), "deployments", "web", &appsv1.Deployment{}, func(d *appsv1.Deployment) bool {
		s := d.Status
		return s.ObservedGeneration == d.Generation && s.UpdatedReplicas == replicas && s.Replicas == replicas && s.AvailableReplicas == replicas
	})
	awaitPods(t, c, "app=web", time.Minute, allReady(int(replicas)))
	sets, err := c.AppsV1().ReplicaSets("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var newest types.UID
	images := map[string]bool{}
	for _, rs := range sets.Items {
		of := rs.Spec.Template.Spec.Containers[0].Image
		if images[of] {
			t.Errorf("two replica sets for %s", of)
		}
		images[of] = true
		want := int32(0)
		if of == image {
			newest, want = rs.UID, replicas
		}
		if *rs.Spec.Replicas != want {
			t.Errorf("replica set %s of %s asks for %d pods, want %d", rs.Name, of, *rs.Spec.Replicas, want)
		}
	}
	pods, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{LabelSelector: "app=web"})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		if ref := metav1.GetControllerOf(&pod); ref == nil || ref.UID != newest || pod.Spec.Containers[0].Image != image {
			t.Errorf("pod %s is of %s and belongs to %v", pod.Name, pod.Spec.Containers[0].Image, ref)
		}
	}
}

func checkStatefulSet(t *testing.T, c kubernetes.Interface, image string, members int32) {
	t.Helper()
	awaitNamed(t, c.AppsV1().RESTClient(), "statefulsets", "db", &appsv1.StatefulSet{}, func(set *appsv1.StatefulSet) bool {
		s := set.Status
		return s.ObservedGeneration == set.Generation && s.CurrentRevision == s.UpdateRevision && s.Replicas == members &&
			s.UpdatedReplicas == members && s.CurrentReplicas == members && s.AvailableReplicas == members
	})
	awaitPods(t, c, "app=db", time.Minute, allReady(int(members)))
	for i := range members {
		pod, err := c.CoreV1().Pods("default").Get(t.Context(), fmt.Sprintf("db-%d", i), metav1.GetOptions{})
		if err != nil {
			t.Errorf("member %d: %v", i, err)
		} else if pod.Spec.Containers[0].Image != image {
			t.Errorf("member %d is of %s", i, pod.Spec.Containers[0].Image)
		}
	}
}

func checkJob(t *testing.T, c kubernetes.Interface, indexes int32) {
	t.Helper()
	awaitNamed(t, c.BatchV1().RESTClient(), "jobs", "work", &batchv1.Job{}, func(job *batchv1.Job) bool {
		return slices.ContainsFunc(job.Status.Conditions, func(c batchv1.JobCondition) bool {
			return c.Type == batchv1.JobComplete && c.Status == corev1.ConditionTrue
		})
	})
	job, err := c.BatchV1().Jobs("default").Get(t.Context(), "work", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if s := job.Status; s.Succeeded != indexes || s.Failed != 0 || s.Active != 0 || s.CompletedIndexes != fmt.Sprintf("0-%d", indexes-1) {
		t.Errorf("job: %d succeeded, %d failed, %d active, indexes %s", s.Succeeded, s.Failed, s.Active, s.CompletedIndexes)
	}
	// One pod of each index is left, and none is held any longer.
	awaitPods(t, c, "app=work", time.Minute, func(pods []corev1.Pod) bool {
		of := map[string]bool{}
		for _, pod := range pods {
			if len(pod.Finalizers) != 0 || pod.Status.Phase != corev1.PodSucceeded {
				return false
			}
			of[pod.Annotations[batchv1.JobCompletionIndexAnnotation]] = true
		}
		return len(pods) == int(indexes) && len(of) == len(pods)
	})
}

// awaitNamed waits until the object of that name is as is says.
func awaitNamed[T runtime.Object](t *testing.T, from rest.Interface, resource, name string, kind T, is func(T) bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	lw := cache.NewListWatchFromClient(from, resource, "default", fields.OneTermEqualSelector("metadata.name", name))
	var last T
	if _, err := watchtools.UntilWithSync(ctx, lw, kind, nil, func(e watch.Event) (bool, error) {
		o, ok := e.Object.(T)
		if ok {
			last = o
		}
		return ok && e.Type != watch.Deleted && is(o), nil
	}); err != nil {
		t.Fatalf("wait for %s %s: %v; it is %+v", resource, name, err, last)
	}
}

// outlive returns when n events of pods have been seen since a version.
func outlive(t *testing.T, c kubernetes.Interface, version string, n int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w, err := c.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{ResourceVersion: version})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if e.Type == watch.Error {
			t.Fatalf("watch pods: %v", e.Object)
		}
		if n--; n == 0 {
			return
		}
	}
	t.Fatalf("%d events of pods were still to come", n)
}

// rolling is a Deployment whose pods end at once when they are deleted.
func rolling(name, image string, replicas int32) *appsv1.Deployment {
	labels, grace := map[string]string{"app": name}, int64(0)
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			TerminationGracePeriodSeconds: &grace, Containers: []corev1.Container{{Name: "c", Image: image}},
		}},
	}}
}

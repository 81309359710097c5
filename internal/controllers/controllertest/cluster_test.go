// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllertest_test

import (
	"context"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/mortise-dev/mortise/embed/embedtest"
)

// await waits until the object of that name is as done says; gone is a deletion.
func await(t *testing.T, client kubernetes.Interface, resource, namespace, name string, kind runtime.Object,
	done func(event watch.EventType, o any) bool) {
	t.Helper()
	getter := client.CoreV1().RESTClient()
	if _, ok := kind.(*appsv1.Deployment); ok {
		getter = client.AppsV1().RESTClient()
	}
	if _, ok := kind.(*appsv1.DaemonSet); ok {
		getter = client.AppsV1().RESTClient()
	}
	lw := cache.NewListWatchFromClient(getter, resource, namespace, fields.OneTermEqualSelector("metadata.name", name))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if _, err := watchtools.UntilWithSync(ctx, lw, kind, func(store cache.Store) (bool, error) {
		return len(store.List()) == 0 && done(watch.Deleted, nil), nil
	}, func(e watch.Event) (bool, error) { return done(e.Type, e.Object), nil }); err != nil {
		t.Fatalf("await %s %s: %v", resource, name, err)
	}
}

func gone(event watch.EventType, _ any) bool { return event == watch.Deleted }

// TestOnACluster runs the loops against the real server, with scheduler and a simulated node: what is applied comes up,
// follows its template, and goes as it is told to.
func TestOnACluster(t *testing.T) {
	cluster := embedtest.New(t)
	client, err := kubernetes.NewForConfig(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	three := int32(3)
	labels := map[string]string{"app": "web"}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "one"}}},
	}
	if _, err := client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "work"}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, client, "serviceaccounts", "work", "default", &corev1.ServiceAccount{},
		func(e watch.EventType, _ any) bool { return e != watch.Deleted })
	await(t, client, "configmaps", "work", "kube-root-ca.crt", &corev1.ConfigMap{},
		func(e watch.EventType, _ any) bool { return e != watch.Deleted })

	deployments := client.AppsV1().Deployments("work")
	d, err := deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.DeploymentSpec{Replicas: &three, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	rolledOut := func(generation int64) func(watch.EventType, any) bool {
		return func(_ watch.EventType, o any) bool {
			d, ok := o.(*appsv1.Deployment)
			if !ok {
				return false
			}
			s := d.Status
			return s.ObservedGeneration >= generation && s.UpdatedReplicas == 3 && s.Replicas == 3 && s.AvailableReplicas == 3
		}
	}
	await(t, client, "deployments", "work", "web", &appsv1.Deployment{}, rolledOut(d.Generation))

	patched, err := deployments.Patch(ctx, "web", "application/strategic-merge-patch+json",
		[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"c","image":"two"}]}}}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	await(t, client, "deployments", "work", "web", &appsv1.Deployment{}, rolledOut(patched.Generation))
	sets, err := client.AppsV1().ReplicaSets("work").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(sets.Items) != 2 {
		t.Errorf("%d replica sets after one rollout", len(sets.Items))
	}

	// Orphaned, the replica sets stay, and know no owner.
	orphan := metav1.DeletePropagationOrphan
	if err := deployments.Delete(ctx, "web", metav1.DeleteOptions{PropagationPolicy: &orphan}); err != nil {
		t.Fatal(err)
	}
	await(t, client, "deployments", "work", "web", &appsv1.Deployment{}, gone)
	if sets, err = client.AppsV1().ReplicaSets("work").List(ctx, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, rs := range sets.Items {
		if len(rs.OwnerReferences) != 0 {
			t.Errorf("orphan %s has owners %v", rs.Name, rs.OwnerReferences)
		}
	}
	if len(sets.Items) != 2 {
		t.Errorf("%d replica sets after their owner went", len(sets.Items))
	}

	// A deployment of the same template adopts them again; deleted in the foreground, it goes last.
	if d, err = deployments.Create(ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       appsv1.DeploymentSpec{Replicas: &three, Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, client, "deployments", "work", "web", &appsv1.Deployment{}, rolledOut(d.Generation))
	foreground := metav1.DeletePropagationForeground
	if err := deployments.Delete(ctx, "web", metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil {
		t.Fatal(err)
	}
	await(t, client, "deployments", "work", "web", &appsv1.Deployment{}, gone)
	pods, err := client.CoreV1().Pods("work").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(pods.Items) != 0 {
		t.Errorf("%d pods outlived a foreground deletion", len(pods.Items))
	}

	// A daemon set runs on the node there is; its namespace takes it along.
	if _, err := client.AppsV1().DaemonSets("work").Create(ctx, &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: "log"},
		Spec:       appsv1.DaemonSetSpec{Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, client, "daemonsets", "work", "log", &appsv1.DaemonSet{}, func(_ watch.EventType, o any) bool {
		set, ok := o.(*appsv1.DaemonSet)
		return ok && set.Status.NumberAvailable == 1
	})
	if err := client.CoreV1().Namespaces().Delete(ctx, "work", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, client, "namespaces", "", "work", &corev1.Namespace{}, gone)
	if _, err := client.AppsV1().DaemonSets("work").Get(ctx, "log", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("get from a namespace that is gone: %v", err)
	}
}

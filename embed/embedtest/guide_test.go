// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest_test

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// The tests of this file are the examples of docs/testing.md: a house test compares the two. TestMain prepares the cluster that several
// tests of the package fork.

var prepared *embed.Server

func TestMain(m *testing.M) {
	embedtest.Main(m, func(ctx context.Context, cluster *embed.Server) error {
		prepared = cluster
		return install(ctx, cluster.Client())
	})
}

// install stands for what installs an operator's definitions.
func install(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.CoreV1().ConfigMaps("default").Create(ctx, configMap("settings"), metav1.CreateOptions{})
	return err
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
}

var podSpec = corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}

// web is a Deployment of some pods.
func web(replicas int32) *appsv1.Deployment {
	labels := map[string]string{"app": "web"}
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec},
	}}
}

// every10Minutes is a CronJob.
func every10Minutes() *batchv1.CronJob {
	pod := podSpec
	pod.RestartPolicy = corev1.RestartPolicyNever
	return &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Name: "often"}, Spec: batchv1.CronJobSpec{
		Schedule: "*/10 * * * *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: pod}}},
	}}
}

func TestGuideNew(t *testing.T) {
	cluster := embedtest.New(t)
	client := cluster.Client()
	if _, err := client.AppsV1().Deployments("default").Create(t.Context(), web(3), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestMyController(t *testing.T) {
	t.Parallel()
	cluster := prepared.Fork(t)
	if _, err := cluster.Client().CoreV1().ConfigMaps("default").Get(t.Context(), "settings", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestGuidePast(t *testing.T) {
	cluster := prepared.Fork(t)
	deployments := cluster.Client().AppsV1().Deployments("default")
	then := time.Now()
	if _, err := deployments.Create(t.Context(), web(3), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	past := kubernetes.NewForConfigOrDie(cluster.AtTime(t, then)) // also by revision: cluster.At
	if _, err := past.AppsV1().Deployments("default").Get(t.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Deployment was there before it was made: %v", err)
	}
	if err := cluster.Reset(); err != nil {
		t.Fatal(err)
	}
	if _, err := deployments.Get(t.Context(), "web", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the Deployment is there after a reset: %v", err)
	}
}

func TestGuideWaiting(t *testing.T) {
	cluster := prepared.Fork(t)
	if _, err := cluster.Client().AppsV1().Deployments("default").Create(t.Context(), web(3), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
	cluster.WaitFor(t, d, func() bool { return d.Status.ReadyReplicas == 3 })
	cluster.Settle(t)
	pods, err := cluster.Client().CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(pods.Items) != 3 {
		t.Errorf("%d pods: %v", len(pods.Items), err)
	}
}

func TestGuideTime(t *testing.T) {
	embedtest.Bubble(t, prepared, func(t *testing.T, cluster *embed.Server) {
		jobs := cluster.Client().BatchV1()
		if _, err := jobs.CronJobs("default").Create(t.Context(), every10Minutes(), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		embedtest.Advance(t, time.Hour) // everything that is due in the hour
		list, err := jobs.Jobs("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) == 0 {
			t.Errorf("%d Jobs: %v", len(list.Items), err)
		}
		embedtest.Settle(t) // nothing more happens now: all queues are empty, all caches have seen the newest revision
	})
}

func TestGuideUsers(t *testing.T) {
	cluster := prepared.Fork(t)
	alice := kubernetes.NewForConfigOrDie(cluster.As("alice", "developers"))
	if _, err := alice.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("alice reads Secrets without a role: %v", err)
	}
}

// metricsHandler is an API server without resources.
var metricsHandler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "metrics.example.com/v1",
	})
})

func TestGuideWebhooks(t *testing.T) {
	cluster := prepared.Fork(t)
	twoVersions(t, cluster)
	admissionHandler, conversionHandler := http.HandlerFunc(labels), http.HandlerFunc(converts)

	cluster.Webhook(t, "/mutate-v1-configmap", admissionHandler, createsConfigMaps) // a mutating webhook; ValidatingWebhook is the other kind
	cluster.ConversionWebhook(t, "widgets.example.com", conversionHandler)
	cluster.APIService(t, schema.GroupVersion{Group: "metrics.example.com", Version: "v1"}, metricsHandler)

	m, err := cluster.Client().CoreV1().ConfigMaps("default").Create(t.Context(), configMap("mine"), metav1.CreateOptions{})
	if err != nil || m.Labels["seen"] != "yes" {
		t.Errorf("the webhook has not seen the ConfigMap: %v %v", m, err)
	}
}

func TestGuideFaults(t *testing.T) {
	embedtest.Explore(t, bare(t), 3, func(r *embedtest.Run) {
		r.Control(embedtest.Copier) // func(ctx context.Context, config *rest.Config) error
		client := r.Cluster.Client().CoreV1()
		source := configMap("a")
		source.Labels, source.Data = map[string]string{"copy": "wanted"}, map[string]string{"value": "1"}
		if _, err := client.ConfigMaps("default").Create(r.Context(), source, metav1.CreateOptions{}); err != nil {
			r.Fatalf("%v", err)
		}
		r.Pause() // for a random while
		if err := client.ConfigMaps("default").Delete(r.Context(), "a", metav1.DeleteOptions{}); err != nil {
			r.Fatalf("%v", err)
		}
		r.Settle()
		left, err := client.Secrets("default").List(r.Context(), metav1.ListOptions{})
		if err != nil || len(left.Items) > 0 {
			r.Errorf("%d copies are left: %v", len(left.Items), err)
		}
	})
}

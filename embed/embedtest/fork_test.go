// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// bare is a cluster without controllers: the store and the API server.
func bare(t *testing.T) *embed.Server {
	t.Helper()
	return embedtest.Start(t, &embed.Server{Controllers: []string{"none"}})
}

func put(t *testing.T, client kubernetes.Interface, name, value string) {
	t.Helper()
	maps := client.CoreV1().ConfigMaps("default")
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"key": value}}
	_, err := maps.Create(t.Context(), m, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = maps.Update(t.Context(), m, metav1.UpdateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// has returns the names and values of the ConfigMaps that tests make.
func has(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	list, err := client.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, m := range list.Items {
		if m.Name != "kube-root-ca.crt" {
			out = append(out, m.Name+"="+m.Data["key"])
		}
	}
	return strings.Join(out, " ")
}

func TestForkIsIndependent(t *testing.T) {
	first := bare(t)
	put(t, first.Client(), "a", "1")
	fork := first.Fork(t)
	put(t, first.Client(), "a", "2")
	put(t, first.Client(), "b", "1")
	client := fork.Client()
	if got := has(t, client); got != "a=1" {
		t.Errorf("the fork has %q", got)
	}
	put(t, client, "c", "1")
	second := fork.Fork(t)
	put(t, second.Client(), "a", "3")
	for _, c := range []struct {
		s    *embed.Server
		want string
	}{{first, "a=2 b=1"}, {fork, "a=1 c=1"}, {second, "a=3 c=1"}} {
		if got := has(t, c.s.Client()); got != c.want {
			t.Errorf("%s has %q, want %q", c.s.URL(), got, c.want)
		}
	}
}

func TestReset(t *testing.T) {
	first := bare(t)
	put(t, first.Client(), "a", "1")
	fork := first.Fork(t)
	client := fork.Client()
	for range 3 {
		put(t, client, "a", "2")
		put(t, client, "b", "1")
		if err := fork.Reset(); err != nil {
			t.Fatal(err)
		}
		if got := has(t, client); got != "a=1" {
			t.Errorf("after a reset the fork has %q", got)
		}
	}
	if err := first.Reset(); err == nil {
		t.Error("a cluster that is no fork resets")
	}
}

func TestAt(t *testing.T) {
	first := bare(t)
	put(t, first.Client(), "a", "1")
	then, when := first.Revision(), time.Now()
	put(t, first.Client(), "a", "2")
	past := kubernetes.NewForConfigOrDie(first.At(t, then))
	fork := first.Fork(t) // knows the times before it, too
	for _, client := range []kubernetes.Interface{
		past, kubernetes.NewForConfigOrDie(first.AtTime(t, when)), kubernetes.NewForConfigOrDie(fork.AtTime(t, when)),
	} {
		if got := has(t, client); got != "a=1" {
			t.Errorf("then the cluster had %q", got)
		}
	}
	if got := has(t, kubernetes.NewForConfigOrDie(first.AtTime(t, time.Now()))); got != "a=2" {
		t.Errorf("now the cluster has %q", got)
	}
	err := past.CoreV1().ConfigMaps("default").Delete(t.Context(), "a", metav1.DeleteOptions{})
	if err == nil || !strings.Contains(err.Error(), "the past cannot be changed") {
		t.Errorf("a write to the past: %v", err)
	}
}

// TestForkHasControllers: a deployment of a fork gets its pods from the fork's own controllers, scheduler and node, and not in the first
// cluster.
func TestForkHasControllers(t *testing.T) {
	first := embedtest.New(t)
	fork := first.Fork(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	pods := fork.Client().CoreV1().Pods("default")
	w, err := pods.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	<-fork.Settled()
	if _, err := pods.Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range w.ResultChan() {
		if p, ok := e.Object.(*corev1.Pod); ok && p.Status.Phase == corev1.PodRunning {
			break
		}
	}
	if _, err := first.Client().CoreV1().Pods("default").Get(t.Context(), "p", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the first cluster has the pod: %v", err)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest_test

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

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

// TestForkCosts measures a fork of a cluster with 10,000 objects: its time and memory until it is used, and until it has answered.
func TestForkCosts(t *testing.T) {
	first := bare(t)
	client := first.Client()
	const objects = 10_000
	create := make(chan int, objects)
	for i := range objects {
		create <- i
	}
	close(create)
	done := make(chan error, 16)
	for range cap(done) {
		go func() {
			for i := range create {
				data := map[string]string{"key": strings.Repeat("x", 500)}
				m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m", i)}, Data: data}
				if _, err := client.CoreV1().ConfigMaps("default").Create(context.Background(), m, metav1.CreateOptions{}); err != nil {
					done <- err
					return
				}
			}
			done <- nil
		}()
	}
	for range cap(done) {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	const forks = 50
	var fresh, unused, before, after runtime.MemStats
	read := func(m *runtime.MemStats) {
		runtime.GC()
		runtime.ReadMemStats(m)
	}
	each := func(from, to *runtime.MemStats) int64 {
		return (int64(to.HeapAlloc) - int64(from.HeapAlloc) + int64(to.StackInuse) - int64(from.StackInuse)) / forks
	}
	if got := has(t, first.Fork(t).Client()); len(got) < objects { // it starts what all forks share
		t.Fatalf("the fork has %.100q", got)
	}
	read(&fresh)
	shortest := time.Hour
	for range forks {
		begin := time.Now()
		first.Fork(t)
		shortest = min(shortest, time.Since(begin))
	}
	read(&unused)
	for name, config := range map[string]func(*embed.Server) *rest.Config{
		"over TLS":        (*embed.Server).Config,
		"in this process": func(s *embed.Server) *rest.Config { return s.As("alice", "system:masters") },
	} {
		answered := make([]time.Duration, forks)
		clients := make([]corev1client.CoreV1Interface, forks)
		read(&before)
		for i := range answered {
			begin := time.Now()
			clients[i] = corev1client.NewForConfigOrDie(config(first.Fork(t)))
			if _, err := clients[i].ConfigMaps("default").Get(t.Context(), "m77", metav1.GetOptions{}); err != nil {
				t.Fatal(err)
			}
			answered[i] = time.Since(begin)
		}
		read(&after)
		runtime.KeepAlive(clients)
		slices.Sort(answered)
		t.Logf("%s: fork and first answer take %v at best, %v in the middle, and %d bytes with the client and its connection", name,
			answered[0], answered[forks/2], each(&before, &after))
		if size := each(&before, &after); size > 200<<10 {
			t.Errorf("a fork that has answered takes %d bytes: want 200 KiB at most", size)
		}
		if name == "in this process" && answered[0] > time.Millisecond {
			t.Errorf("fork and answer take %v: want a millisecond at most", answered[0])
		}
	}
	t.Logf("a fork of %d objects takes %v at best and %d bytes until it is used", objects, shortest, each(&fresh, &unused))
}

// forks is how many parallel tests fork the prepared cluster: by the environment, a few otherwise.
func forks() int {
	if n, err := strconv.Atoi(os.Getenv("MORTISE_FORKS")); err == nil {
		return n
	}
	return 10
}

// TestParallelForks runs parallel tests, each with a fork with all controllers, the scheduler and a node, that waits until a Deployment of
// the fork has its pod. It measures them together.
func TestParallelForks(t *testing.T) {
	began := time.Now()
	t.Run("all", func(t *testing.T) {
		for i := range forks() {
			t.Run(strconv.Itoa(i), func(t *testing.T) {
				t.Parallel()
				cluster := prepared.Fork(t)
				if _, err := cluster.Client().AppsV1().Deployments("default").Create(t.Context(), web(1), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web"}}
				cluster.WaitFor(t, d, func() bool { return d.Status.ReadyReplicas == 1 })
			})
		}
	})
	t.Logf("%d parallel tests took %v; the process had up to %s resident", forks(), time.Since(began), resident())
}

// resident returns the largest resident memory of this process so far, where the system says it.
func resident() string {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "unknown memory"
	}
	_, after, _ := strings.Cut(string(text), "VmHWM:")
	line, _, _ := strings.Cut(after, "\n")
	return strings.TrimSpace(line)
}

// TestNewCosts measures a start, until the first answer.
func TestNewCosts(t *testing.T) {
	shortest := time.Hour
	for range 5 {
		began := time.Now()
		cluster := embedtest.New(t)
		took := time.Since(began)
		if _, err := cluster.Client().CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		shortest = min(shortest, took)
		if err := cluster.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("embedtest.New takes %v at best", shortest)
}

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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// The tests of this file measure. Their attributes are cells of the table that scripts/testcost prints.

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
		"fork-over-tls":   (*embed.Server).Config,
		"fork-in-process": func(s *embed.Server) *rest.Config { return s.As("alice", "system:masters") },
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
		size := each(&before, &after)
		t.Attr(name, fmt.Sprintf("%v at best, %v in the middle; %d KB with the client",
			answered[0].Round(time.Microsecond), answered[forks/2].Round(time.Microsecond), size/1000))
		if size > 200<<10 {
			t.Errorf("a fork that has answered takes %d bytes: want 200 KiB at most", size)
		}
		if name == "fork-in-process" && answered[0] > time.Millisecond {
			t.Errorf("fork and answer take %v: want a millisecond at most", answered[0])
		}
	}
	t.Attr("fork", fmt.Sprintf("%v at best, %.1f KB", shortest.Round(time.Microsecond), float64(each(&fresh, &unused))/1000))
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
	t.Attr("parallel", fmt.Sprintf("%d tests in %.1f s", forks(), time.Since(began).Seconds()))
}

// TestNewCosts measures a start with all controllers, and the first answer after it.
func TestNewCosts(t *testing.T) {
	shortest, answered := time.Hour, time.Hour
	for range 5 {
		began := time.Now()
		cluster := embedtest.New(t)
		shortest = min(shortest, time.Since(began))
		if _, err := cluster.Client().CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		answered = min(answered, time.Since(began))
		if err := cluster.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	const digit = 100 * time.Microsecond
	t.Attr("new", fmt.Sprintf("%v at best; %v with the first answer", shortest.Round(digit), answered.Round(digit)))
}

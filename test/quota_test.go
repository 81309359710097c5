// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// limit makes a namespace with a quota that is in force.
func limit(t testing.TB, c kubernetes.Interface, namespace string, hard map[corev1.ResourceName]string) {
	t.Helper()
	if _, err := c.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	q := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "limits"}, Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{}}}
	for name, value := range hard {
		q.Spec.Hard[name] = resource.MustParse(value)
	}
	if _, err := c.CoreV1().ResourceQuotas(namespace).Create(t.Context(), q, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitQuota(t, c, namespace, func(q *corev1.ResourceQuota) bool { return len(q.Status.Used) == len(hard) })
}

// awaitQuota waits until the namespace's quota is as wanted.
func awaitQuota(t testing.TB, c kubernetes.Interface, namespace string, ok func(*corev1.ResourceQuota) bool) *corev1.ResourceQuota {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	w, err := c.CoreV1().ResourceQuotas(namespace).Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	var last *corev1.ResourceQuota
	for e := range w.ResultChan() {
		if q, is := e.Object.(*corev1.ResourceQuota); is {
			if last = q; ok(q) {
				return q
			}
		}
	}
	t.Fatalf("quota of %s is never as wanted; at last %+v", namespace, last)
	return nil
}

func used(q *corev1.ResourceQuota, name corev1.ResourceName) int64 {
	n := q.Status.Used[name]
	return n.Value()
}

func mapNamed(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// guard watches the config maps of a namespace and tells how many there were at most at any revision.
func guard(t *testing.T, c kubernetes.Interface, namespace string) (most func() int) {
	t.Helper()
	w, err := c.CoreV1().ConfigMaps(namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var top atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		here := 0
		for e := range w.ResultChan() {
			switch e.Type {
			case watch.Added:
				here++
			case watch.Deleted:
				here--
			}
			top.Store(max(top.Load(), int64(here)))
			if m, ok := e.Object.(*corev1.ConfigMap); ok && m.Name == "the-last" && e.Type == watch.Deleted {
				return
			}
		}
	}()
	return func() int {
		// What is made and deleted last is seen last.
		if _, err := c.CoreV1().ConfigMaps(namespace).Create(t.Context(), mapNamed("the-last"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := c.CoreV1().ConfigMaps(namespace).Delete(t.Context(), "the-last", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		<-done
		w.Stop()
		return int(top.Load())
	}
}

// TestQuotaHolds: 64 creators at the limit never exceed it and never lose a place, with deletions and names that are taken in
// between, while the controller counts.
func TestQuotaHolds(t *testing.T) {
	cluster := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"resourcequota"}})
	c := cluster.Client()
	const creators, allowed = 64, 50
	for _, mode := range []string{"create", "create-and-delete", "taken-names"} {
		t.Run(mode, func(t *testing.T) {
			limit(t, c, mode, map[corev1.ResourceName]string{"count/configmaps": fmt.Sprint(allowed), "configmaps": fmt.Sprint(allowed + 7)})
			maps := c.CoreV1().ConfigMaps(mode)
			most := guard(t, c, mode)
			var wg sync.WaitGroup
			var made, refused, taken atomic.Int64
			for i := range creators {
				wg.Go(func() {
					random := rand.New(rand.NewPCG(uint64(i), 1))
					for j := range 12 {
						name := fmt.Sprintf("m-%d-%d", i, j)
						if mode == "taken-names" {
							name = fmt.Sprintf("m-%d", random.IntN(allowed+20))
						}
						_, err := maps.Create(t.Context(), mapNamed(name), metav1.CreateOptions{})
						switch {
						case err == nil:
							made.Add(1)
						case apierrors.IsForbidden(err):
							refused.Add(1)
						case apierrors.IsAlreadyExists(err) && mode == "taken-names":
							taken.Add(1)
						default:
							t.Errorf("create: %v", err)
							return
						}
						if mode != "create" && err == nil && random.IntN(3) > 0 {
							if err := maps.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
								t.Errorf("delete: %v", err)
							}
						}
					}
				})
			}
			wg.Wait()
			t.Logf("%d made, %d refused, %d names taken", made.Load(), refused.Load(), taken.Load())
			if mode == "create" && made.Load() != allowed {
				t.Errorf("%d were made, %d are allowed", made.Load(), allowed)
			}
			list, err := maps.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			there := int64(len(list.Items))
			awaitQuota(t, c, mode, func(q *corev1.ResourceQuota) bool {
				return used(q, "count/configmaps") == there && used(q, "configmaps") == there
			})
			// No place was lost: as many can be made as there is room for.
			for n := there; n < allowed; n++ {
				if _, err := maps.Create(t.Context(), mapNamed(fmt.Sprintf("more-%d", n)), metav1.CreateOptions{}); err != nil {
					t.Fatalf("with %d of %d: %v", n, allowed, err)
				}
			}
			if _, err := maps.Create(t.Context(), mapNamed("one-more"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
				t.Errorf("one more than allowed: %v", err)
			}
			if list, err = maps.List(t.Context(), metav1.ListOptions{}); err != nil {
				t.Fatal(err)
			}
			if err := maps.Delete(t.Context(), list.Items[0].Name, metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			awaitQuota(t, c, mode, func(q *corev1.ResourceQuota) bool { return used(q, "count/configmaps") == allowed-1 })
			if n := most(); n > allowed {
				t.Errorf("there were %d at once, %d are allowed", n, allowed)
			}
		})
	}
}

// BenchmarkQuota is what a create costs in a namespace without and with quotas, with one client and with sixteen.
func BenchmarkQuota(b *testing.B) {
	cluster := embedtest.Start(b, &embed.Server{Node: embed.NodeNone, Controllers: []string{"resourcequota"}})
	c := cluster.Client()
	if _, err := c.CoreV1().Namespaces().Create(b.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "without"}},
		metav1.CreateOptions{}); err != nil {
		b.Fatal(err)
	}
	limit(b, c, "with", map[corev1.ResourceName]string{"count/configmaps": "100000000"})
	limit(b, c, "other", map[corev1.ResourceName]string{"pods": "1", "count/secrets": "1"})
	var serial atomic.Int64
	for _, namespace := range []string{"without", "other", "with"} {
		for _, clients := range []int{1, 16} {
			b.Run(fmt.Sprintf("%s/%d", namespace, clients), func(b *testing.B) {
				var wg sync.WaitGroup
				var left atomic.Int64
				left.Store(int64(b.N))
				b.ResetTimer()
				for range clients {
					wg.Go(func() {
						for left.Add(-1) >= 0 {
							if _, err := c.CoreV1().ConfigMaps(namespace).Create(b.Context(), mapNamed(fmt.Sprintf("m%d", serial.Add(1))),
								metav1.CreateOptions{}); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				wg.Wait()
			})
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestQuotaAfterKill: a server that is killed while 16 create and delete comes back, counts, and lets in as many as are allowed.
func TestQuotaAfterKill(t *testing.T) {
	dir := t.TempDir()
	const allowed = 30
	p := up(t, dir, "--node", "none", "--controllers", "resourcequota")
	c := p.client()
	limit(t, c, "killed", map[corev1.ResourceName]string{"count/configmaps": fmt.Sprint(allowed)})
	maps := c.CoreV1().ConfigMaps("killed")
	var wg sync.WaitGroup
	var made atomic.Int64
	enough := make(chan struct{})
	for i := range 16 {
		wg.Go(func() {
			for j := 0; ; j++ {
				name := fmt.Sprintf("m-%d-%d", i, j)
				_, err := maps.Create(t.Context(), mapNamed(name), metav1.CreateOptions{})
				if err != nil && !apierrors.IsForbidden(err) {
					return // the server is gone
				}
				if err == nil {
					if made.Add(1) == 100 {
						close(enough)
					}
					_ = maps.Delete(t.Context(), name, metav1.DeleteOptions{}) // it may be gone as well
				}
			}
		})
	}
	select {
	case <-enough:
	case <-time.After(30 * time.Second):
		t.Fatalf("%d were made", made.Load())
	}
	p.kill()
	wg.Wait()

	c = up(t, dir, "--node", "none", "--controllers", "resourcequota").client()
	list, err := c.CoreV1().ConfigMaps("killed").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Items) > allowed {
		t.Errorf("%d are there, %d are allowed", len(list.Items), allowed)
	}
	awaitQuota(t, c, "killed", func(q *corev1.ResourceQuota) bool { return used(q, "count/configmaps") == int64(len(list.Items)) })
	for n := len(list.Items); n <= allowed; n++ {
		_, err := c.CoreV1().ConfigMaps("killed").Create(t.Context(), mapNamed(fmt.Sprintf("more-%d", n)), metav1.CreateOptions{})
		if n < allowed && err != nil || n == allowed && !apierrors.IsForbidden(err) {
			t.Fatalf("with %d of %d: %v", n, allowed, err)
		}
	}
}

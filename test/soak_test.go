// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

var (
	soak = flag.Duration("soak", 0, "how long TestSoak goes on; 0 leaves it out")
	seed = flag.Uint64("soak.seed", uint64(time.Now().UnixNano()), "what decides TestSoak's choices")
)

// TestSoak lets writers create, update and delete while the server is killed at random, over and over, and wants after
// each start just what was acknowledged; what was under way at the kill may be there or not.
func TestSoak(t *testing.T) {
	if *soak == 0 {
		t.Skip("the soak is left to `make soak` (-soak DURATION)")
	}
	t.Logf("-soak.seed %d", *seed)
	random := rand.New(rand.NewPCG(*seed, 1))
	dir := filepath.Join(t.TempDir(), "data")
	const writers = 16
	acked := make([]map[string]string, writers) // by name: the resourceVersion that was acknowledged last
	for i := range acked {
		acked[i] = map[string]string{}
	}
	rounds, writes := 0, 0
	for began := time.Now(); time.Since(began) < *soak; rounds++ {
		p := up(t, dir, "--node", "none", "--controllers", "none")
		verify(t, p.client(), acked)
		if t.Failed() {
			t.Fatalf("round %d, seed %d", rounds, *seed)
		}
		enough := make(chan struct{}, 1)
		limit := 50 + random.IntN(2000)
		var mu sync.Mutex
		done := 0
		ctx, stop := context.WithCancel(t.Context())
		var g sync.WaitGroup
		for i := range writers {
			r := rand.New(rand.NewPCG(*seed, uint64(rounds*writers+i+2)))
			g.Go(func() {
				for ctx.Err() == nil && write(ctx, p.client(), r, i, acked[i]) {
					mu.Lock()
					if done++; done == limit {
						enough <- struct{}{}
					}
					mu.Unlock()
				}
			})
		}
		<-enough
		p.kill()
		stop()
		g.Wait()
		writes += done
	}
	t.Logf("%d rounds, %d acknowledged writes", rounds, writes)
}

// write does one write and books it; false when its outcome is not known, which ends the writer. What it was about is
// then forgotten.
func write(ctx context.Context, c kubernetes.Interface, r *rand.Rand, writer int, acked map[string]string) bool {
	api := c.CoreV1().ConfigMaps("default")
	name := fmt.Sprintf("w%d-%d", writer, r.IntN(50))
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"v": fmt.Sprint(r.Uint64())}}
	version, there := acked[name]
	var err error
	switch {
	case !there:
		m, err = api.Create(ctx, m, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // of an outcome that was not known
			m, err = api.Get(ctx, name, metav1.GetOptions{})
		}
	case r.IntN(3) == 0:
		if err = api.Delete(ctx, name, metav1.DeleteOptions{}); err == nil {
			delete(acked, name)
			return true
		}
	default:
		m.ResourceVersion = version
		m, err = api.Update(ctx, m, metav1.UpdateOptions{})
	}
	if err != nil {
		delete(acked, name)
		return false
	}
	acked[name] = m.ResourceVersion
	return true
}

// verify wants every acknowledged object at its resourceVersion.
func verify(t *testing.T, c kubernetes.Interface, acked []map[string]string) {
	t.Helper()
	list, err := c.CoreV1().ConfigMaps("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]string{}
	for _, m := range list.Items {
		have[m.Name] = m.ResourceVersion
	}
	for _, own := range acked {
		for name, version := range own {
			if have[name] != version {
				t.Errorf("%s is at %q, acknowledged at %s", name, have[name], version)
			}
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
)

// seeds is how many seeds a test explores: by the environment, a few otherwise.
func seeds(few int) int {
	if n, err := strconv.Atoi(os.Getenv("MORTISE_SEEDS")); err == nil {
		return n
	}
	return few
}

// TestExplore has the explorer find each planted bug, and none in the controller without one.
func TestExplore(t *testing.T) {
	first := Start(t, &embed.Server{Controllers: []string{"none"}})
	for _, b := range []bug{lostUpdate, missedDelete, blindCreate, ignoredConflict} {
		t.Run(string(b), func(t *testing.T) {
			began := time.Now()
			x := explore(t, first, 1000, b.story)
			if x == nil {
				t.Fatal("1,000 seeds do not find it")
			}
			if b == blindCreate && x.seed == 0 {
				t.Error("a run without faults shows it")
			}
			t.Logf("after %v\n%s", time.Since(began), x)
		})
	}
	t.Run("none", func(t *testing.T) {
		Explore(t, first, seeds(10), none.story)
	})
}

// TestShrink: of a run with several faults, of which two together lead to an error, these two are left.
func TestShrink(t *testing.T) {
	first := Start(t, &embed.Server{Controllers: []string{"none"}})
	story := func(r *Run) {
		var failed atomic.Int32
		r.Control(func(ctx context.Context, config *rest.Config) error {
			maps := kubernetes.NewForConfigOrDie(config).CoreV1().ConfigMaps("default")
			for i := range 5 {
				m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("m", i)}}
				if _, err := maps.Create(ctx, m, metav1.CreateOptions{}); err != nil {
					failed.Add(1)
				}
			}
			<-ctx.Done()
			return nil
		})
		r.Advance(time.Minute)
		if failed.Load() >= 2 {
			r.Errorf("two writes have failed")
		}
	}
	faults := []Fault{
		{Kind: Delay, At: 1, Delay: time.Second}, {Kind: Drop, At: 2}, {Kind: DelayAnswer, At: 3, Delay: time.Second},
		{Kind: LoseAnswer, At: 4}, {Kind: EndWatch, At: 1, Delay: time.Second},
	}
	x := shrink(t, first, &failure{seed: 1, faults: faults, run: attempt(t, first, 1, faults, story)}, story)
	if want := []Fault{faults[1], faults[3]}; !slices.Equal(x.faults, want) || len(x.run.errors) != 1 {
		t.Errorf("left are %v with errors %q: want %v", x.faults, x.run.errors, want)
	}
	if text := x.String(); !strings.Contains(text, "embedtest.Replay(t, cluster, 1, []embedtest.Fault{{Kind: embedtest.Drop, At: 2}, ") {
		t.Errorf("it is reported as %s", text)
	}
}

// TestFaultsAreLiterals: a reported fault can be pasted into a test.
func TestFaultsAreLiterals(t *testing.T) {
	f := Fault{Kind: Gone, At: 2, Resource: "pods", Delay: 1500 * time.Millisecond}
	if got, want := f.String(), `{Kind: embedtest.Gone, At: 2, Resource: "pods", Delay: 1500 * time.Millisecond}`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// TestPodsByLabel: after any events each selector finds what a look at all pods finds.
func TestPodsByLabel(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1))
		store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
		p := &podsByLabel{lister: listers.NewPodLister(store)}
		selectors := make([]labels.Selector, 0, 8)
		for _, text := range []string{"app=a", "app in (a,b)", "app=a,tier=x", "tier=y", "app!=a", "tier", "", "!tier,app=b"} {
			s, err := labels.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			selectors = append(selectors, s)
		}
		for range 300 {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("ns", r.IntN(2)), Name: fmt.Sprint("p", r.IntN(10)),
				Labels: map[string]string{"app": string(rune('a' + r.IntN(3)))}}}
			if r.IntN(2) == 0 {
				pod.Labels["tier"] = string(rune('x' + r.IntN(2)))
			}
			old, there, err := store.Get(pod)
			switch {
			case err != nil:
				t.Fatal(err)
			case !there:
				_ = store.Add(pod)
				p.come(pod)
			case r.IntN(3) == 0:
				_ = store.Delete(old)
				p.gone(old.(*corev1.Pod))
			default:
				_ = store.Update(pod)
				p.change(old.(*corev1.Pod), pod)
			}
			s := selectors[r.IntN(len(selectors))]
			names := func(pods []*corev1.Pod, err error) (all []string) {
				if err != nil {
					t.Fatal(err)
				}
				for _, pod := range pods {
					all = append(all, pod.Name)
				}
				slices.Sort(all)
				return all
			}
			got, want := names(p.list("ns0", s)), names(p.lister.Pods("ns0").List(s))
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d: %s finds %v, not %v", seed, s, got, want)
			}
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
)

// lent is an informer that reports who takes the map of indexers, which others change under a lock.
type lent struct {
	cache.SharedIndexInformer
	t *testing.T
}

func (l lent) GetIndexer() cache.Indexer { return lentIndexer{l.SharedIndexInformer.GetIndexer(), l.t} }

type lentIndexer struct {
	cache.Indexer
	t *testing.T
}

func (l lentIndexer) GetIndexers() cache.Indexers {
	l.t.Error("the map of indexers is read without its lock")
	return l.Indexer.GetIndexers()
}

// TestIndexFromManyControllers has controllers that start side by side want the same indices of one informer.
func TestIndexFromManyControllers(t *testing.T) {
	const controllers, indices = 8, 20
	informer := lent{cache.NewSharedIndexInformer(&cache.ListWatch{}, &corev1.Pod{}, 0, cache.Indexers{}), t}
	byNode := func(o any) ([]string, error) { return []string{o.(*corev1.Pod).Spec.NodeName}, nil }
	var all sync.WaitGroup
	for range controllers {
		all.Go(func() {
			for i := range indices {
				if err := Index(informer, strconv.Itoa(i), byNode); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	if err := informer.GetIndexer().Add(&corev1.Pod{Spec: corev1.PodSpec{NodeName: "n"}}); err != nil {
		t.Fatal(err)
	}
	for i := range indices {
		if found, err := informer.GetIndexer().ByIndex(strconv.Itoa(i), "n"); err != nil || len(found) != 1 {
			t.Errorf("index %d has %v, %v", i, found, err)
		}
	}
}

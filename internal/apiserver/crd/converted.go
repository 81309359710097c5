// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"container/list"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// convertedBytes bounds what a definition's converted objects take, as JSON.
const convertedBytes = 16 << 20

// converted caches which object a webhook returned for which object, keyed by the whole object, its revision included: the
// webhook is called once for each (revision, version). The oldest entries are dropped first.
type converted struct {
	mu    sync.Mutex
	by    map[digest]*list.Element
	order *list.List // of *conversionResult, the newest first
	size  int
}

type digest [sha256.Size]byte

type conversionResult struct {
	key     digest
	content map[string]any
	size    int
}

func newConverted() *converted {
	return &converted{by: map[digest]*list.Element{}, order: list.New()}
}

// key identifies an object and the version that it is wanted in.
func key(o *unstructured.Unstructured, apiVersion string) (digest, int, error) {
	h := sha256.New()
	_, _ = io.WriteString(h, apiVersion+"\n")
	b, err := json.Marshal(o.Object)
	if err != nil {
		return digest{}, 0, fmt.Errorf("encode %s to convert it: %w", o.GetName(), err)
	}
	_, _ = h.Write(b)
	return digest(h.Sum(nil)), len(b), nil
}

func (c *converted) get(k digest) map[string]any {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.by[k]
	if e == nil {
		return nil
	}
	c.order.MoveToFront(e)
	return e.Value.(*conversionResult).content
}

func (c *converted) put(r *conversionResult) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by[r.key] != nil {
		return
	}
	c.by[r.key] = c.order.PushFront(r)
	c.size += r.size
	for c.size > convertedBytes && c.order.Len() > 1 {
		last := c.order.Remove(c.order.Back()).(*conversionResult)
		delete(c.by, last.key)
		c.size -= last.size
	}
}

// memoized is convert with a cache of earlier results. The returned objects belong to the caller.
func (c *conversion) memoized(ctx context.Context, objs []*unstructured.Unstructured, apiVersion string) ([]*unstructured.Unstructured,
	error) {
	out := make([]*unstructured.Unstructured, len(objs))
	keys := make([]digest, len(objs))
	sizes := make([]int, len(objs))
	var missing []int
	var ask []*unstructured.Unstructured
	for i, o := range objs {
		var err error
		if keys[i], sizes[i], err = key(o, apiVersion); err != nil {
			return nil, err
		}
		if content := c.done.get(keys[i]); content != nil {
			out[i] = &unstructured.Unstructured{Object: runtime.DeepCopyJSON(content)}
			continue
		}
		missing = append(missing, i)
		ask = append(ask, o)
	}
	if len(ask) == 0 {
		return out, nil
	}
	answers, err := c.convert(ctx, ask, apiVersion)
	if err != nil {
		return nil, err
	}
	for n, i := range missing {
		c.done.put(&conversionResult{key: keys[i], content: answers[n].Object, size: sizes[i]})
		out[i] = answers[n].DeepCopy()
	}
	return out, nil
}

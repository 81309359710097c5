// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
	"github.com/mortise-dev/mortise/internal/selectors"
)

// watches counts watchers by what they select. A write with many watchers costs more.
type watches struct {
	n      atomic.Int64
	mu     sync.RWMutex
	counts map[watched]int
}

type watched struct{ group, resource, namespace, name string }

// Watching counts a watch; the returned function ends it.
func (c *Controller) Watching(r *http.Request, info *requestinfo.Info) (forget func()) {
	if info.Resource == "pods" && ofOneNode(r) {
		return func() {} // few pods: an index finds their watchers
	}
	k, w := watched{info.APIGroup, info.Resource, info.Namespace, info.Name}, &c.watches
	w.n.Add(1)
	w.mu.Lock()
	w.counts[k]++
	w.mu.Unlock()
	return func() {
		w.n.Add(-1)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.counts[k]--; w.counts[k] == 0 {
			delete(w.counts, k)
		}
	}
}

// ofOneNode reports whether a watch of pods is of one node's.
func ofOneNode(r *http.Request) bool {
	s := r.URL.Query().Get("fieldSelector")
	if s == "" {
		return false
	}
	sel, err := selectors.ParseFields(s)
	if err != nil {
		return false
	}
	node, ok := sel.RequiresExactMatch("spec.nodeName")
	return ok && node != ""
}

// watchers returns how many watchers receive the change of a request.
func (c *Controller) watchers(info *requestinfo.Info) int {
	w := &c.watches
	if w.n.Load() == 0 {
		return 0
	}
	k := watched{group: info.APIGroup, resource: info.Resource}
	w.mu.RLock()
	defer w.mu.RUnlock()
	n := w.counts[k]
	if info.Namespace != "" {
		k.namespace = info.Namespace
		n += w.counts[k]
	}
	if info.Name != "" {
		k.name = info.Name
		n += w.counts[k]
	}
	return n
}

type beginning struct{}

// WithBeginning returns a context with which [Began] calls began once, when the watch has begun: it holds no seats
// after that.
func WithBeginning(ctx context.Context, began func()) context.Context {
	return context.WithValue(ctx, beginning{}, began)
}

// Began reports that the watch of ctx has sent the initial objects.
func Began(ctx context.Context) {
	if f, ok := ctx.Value(beginning{}).(func()); ok {
		f()
	}
}

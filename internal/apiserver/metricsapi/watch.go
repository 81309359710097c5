// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A node with watches is measured again after some time in these bounds.
const (
	soonest = time.Second
	latest  = resolution
	// part is the inverse of the part of the time that the measurements of all such nodes take together: 2 %.
	part = 50
)

// Watch asks to be told when some pods together use more or less than they did.
type Watch struct {
	Pods   []Pod
	Bounds []Bound
	// Wake is called at most once, when the usage leaves one of the bounds. It is called while the server holds its lock: it must neither
	// block nor call the server.
	Wake func()
}

// Pod names a pod and its node.
type Pod struct{ Namespace, Name, Node string }

// Bound is the range of the usage of a resource by all pods of a watch together, in multiples of the usage at the begin of the watch.
type Bound struct {
	Resource  corev1.ResourceName // cpu or memory
	Container string              // of each pod; empty: all of its containers
	Low, High float64             // both from 0 to +Inf
}

// least is the change of the usage of one pod that counts: autoscalers do not see smaller ones.
func (b *Bound) least() float64 {
	if b.Resource == corev1.ResourceMemory {
		return 1 << 10
	}
	return 1e-3
}

// of returns a pod's usage of the bound's resource; 0 where it is not known.
func (b *Bound) of(last, prev *sample, key podKey) (sum float64) {
	u, ok := podUsage(last, prev, key)
	if !ok {
		return 0
	}
	for _, c := range u.containers {
		switch {
		case b.Container != "" && b.Container != c.name:
		case b.Resource == corev1.ResourceCPU:
			sum += float64(c.cpu) / 1e9
		case b.Resource == corev1.ResourceMemory:
			sum += float64(c.memory)
		}
	}
	return sum
}

// watch is a Watch that holds.
type watch struct {
	bounds []Bound
	began  []float64 // the usage for each bound
	wake   func()    // nil: it has been called
	shares []share
	pods   int
}

// share is a watch's pods on one node.
type share struct {
	of   *watch
	node string
	pods []podKey
	uses []float64 // for each bound, at the last measurement
}

// measure sums what the pods of a share use.
func (s *share) measure(n *node) {
	last, prev := n.samples()
	for i := range s.of.bounds {
		sum := 0.0
		for _, key := range s.pods {
			sum += s.of.bounds[i].of(last, prev, key)
		}
		s.uses[i] = sum
	}
}

// sum is what all pods of the watch use.
func (w *watch) sum(bound int) (sum float64) {
	for i := range w.shares {
		sum += w.shares[i].uses[bound]
	}
	return sum
}

// check calls wake if the usage has left a bound.
func (w *watch) check() {
	if w.wake == nil {
		return
	}
	for i := range w.bounds {
		b, began, now := &w.bounds[i], w.began[i], w.sum(i)
		if least := b.least() * float64(w.pods); now < began*b.Low-least || now > began*b.High+least {
			w.wake()
			w.wake = nil
			return
		}
	}
}

// Watch begins a watch in place of the one of that key; a nil watch ends that. The nodes of its pods are measured about every second, or so
// often that the measurements take at most 2 % of the time, for as long as clients ask for them too: where another server answers for
// metrics.k8s.io, nothing is measured. A node that has not been asked for is not watched. A nil server watches nothing.
func (s *Server) Watch(key types.NamespacedName, of *Watch) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unwatch(key)
	if of == nil || len(of.Bounds) == 0 || s.closed {
		return
	}
	w := &watch{bounds: of.Bounds, began: make([]float64, len(of.Bounds)), wake: of.Wake}
	at := map[string]int{}
	for _, p := range of.Pods {
		if s.nodes[p.Node] == nil {
			continue
		}
		i, ok := at[p.Node]
		if !ok {
			i = len(w.shares)
			at[p.Node] = i
			w.shares = append(w.shares, share{of: w, node: p.Node, uses: make([]float64, len(of.Bounds))})
		}
		w.shares[i].pods = append(w.shares[i].pods, podKey{p.Namespace, p.Name})
		w.pods++
	}
	if len(w.shares) == 0 {
		return
	}
	s.watches[key] = w
	for i := range w.shares {
		sh := &w.shares[i]
		n := s.nodes[sh.node]
		if n.shares == nil {
			n.shares = map[*share]struct{}{}
		}
		if len(n.shares) == 0 {
			s.watched++
		}
		n.shares[sh] = struct{}{}
		sh.measure(n)
		s.follow(n)
	}
	for i := range w.bounds {
		w.began[i] = w.sum(i)
	}
}

// unwatch ends a watch. The caller holds the lock.
func (s *Server) unwatch(key types.NamespacedName) {
	w := s.watches[key]
	if w == nil {
		return
	}
	delete(s.watches, key)
	for i := range w.shares {
		sh := &w.shares[i]
		n := s.nodes[sh.node]
		if n == nil {
			continue
		}
		if _, has := n.shares[sh]; !has {
			continue // the node was forgotten, and has come again
		}
		if delete(n.shares, sh); len(n.shares) == 0 {
			s.watched--
		}
	}
}

// forget drops a node. The caller holds the lock.
func (s *Server) forget(name string, n *node) {
	if len(n.shares) > 0 {
		s.watched--
	}
	if n.again != nil {
		n.again.Stop()
	}
	delete(s.nodes, name)
}

// tell tells the watches of a node that it has been measured. The caller holds the lock.
func (s *Server) tell(n *node) {
	if n.last == nil {
		return // what it uses is not known
	}
	for sh := range n.shares {
		sh.measure(n)
		sh.of.check()
	}
}

// follow has a node with watches measured again. The caller holds the lock.
func (s *Server) follow(n *node) {
	if len(n.shares) == 0 || n.again != nil || n.busy != nil || s.closed {
		return
	}
	pause := min(max(part*time.Duration(s.watched)*n.took, soonest), latest)
	if n.last == nil {
		pause = latest
	}
	n.again = time.AfterFunc(pause, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		n.again = nil
		now := time.Now()
		if len(n.shares) > 0 && n.busy == nil && !s.closed && now.Sub(n.asked) < keeps {
			s.start(n, now)
		}
	})
}

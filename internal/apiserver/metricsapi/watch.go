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
	// hurry is the time between measurements while the usage is about to leave a bound: for so long as haste, and once in a resolution.
	hurry, haste = 250 * time.Millisecond, 2 * time.Second
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

// of returns what a pod uses of the bound's resource, and its processor time so far, if that is the resource; 0 where it is not known.
func (b *Bound) of(now, before []Container, begin time.Time) (sum, counter float64) {
	if !each(now, before, begin, func(c *Container, u usage) {
		switch {
		case b.Container != "" && b.Container != c.Name:
		case b.Resource == corev1.ResourceCPU:
			sum += float64(u.cpu) / 1e9
			counter += float64(c.CPU) / 1e9
		case b.Resource == corev1.ResourceMemory:
			sum += float64(u.memory)
		}
	}) {
		return 0, 0
	}
	return sum, counter
}

// left reports whether a usage of so many pods has left the bound, which is in multiples of the usage before.
func (b *Bound) left(before, now float64, pods int) bool {
	least := b.least() * float64(pods)
	return now < before*b.Low-least || now > before*b.High+least
}

// watch is a Watch that holds.
type watch struct {
	bounds  []Bound
	began   []float64 // the usage for each bound
	wake    func()    // nil: it has been called
	shares  []share
	pods    int
	hurried time.Time // begin of the last haste
}

// share is a watch's pods on one node.
type share struct {
	of   *watch
	node string
	pods []sharedPod
	uses []use     // for each bound
	at   time.Time // of the last measurement
}

// sharedPod is a pod of a share.
type sharedPod struct {
	podKey
	at int // its place in the last measurement
}

// use is what the pods of a share use, as far as a bound is about it.
type use struct {
	now     float64 // over the window
	lately  float64 // since the measurement before; now where that is not known
	counter float64 // of processor time
}

// measure sums what the pods of a share use.
func (s *share) measure(n *node) {
	last, prev := n.samples()
	if last == nil {
		clear(s.uses)
		s.at = time.Time{}
		return
	}
	var since float64 // the measurement before
	if !s.at.IsZero() {
		since = last.at.Sub(s.at).Seconds()
	}
	s.at = last.at
	for i := range s.of.bounds {
		var u use
		for j := range s.pods {
			p := &s.pods[j]
			now, counter := s.of.bounds[i].of(last.near(p.podKey, &p.at), prev.near(p.podKey, &p.at), prev.at)
			u.now += now
			u.counter += counter
		}
		u.lately = u.now
		if d := u.counter - s.uses[i].counter; since > 0 && d > 0 {
			u.lately = d / since
		}
		s.uses[i] = u
	}
}

// sum is what all pods of the watch use, and used lately.
func (w *watch) sum(bound int) (now, lately float64) {
	for i := range w.shares {
		now += w.shares[i].uses[bound].now
		lately += w.shares[i].uses[bound].lately
	}
	return now, lately
}

// check calls wake if the usage has left a bound, and reports whether it is about to.
func (w *watch) check() (soon bool) {
	if w.wake == nil {
		return false
	}
	for i := range w.bounds {
		now, lately := w.sum(i)
		if w.bounds[i].left(w.began[i], now, w.pods) {
			w.wake()
			w.wake = nil
			return false
		}
		soon = soon || w.bounds[i].left(w.began[i], lately, w.pods)
	}
	return soon
}

// hastens reports whether the nodes of a watch whose usage is about to leave a bound may be measured sooner.
func (w *watch) hastens(now time.Time) bool {
	if now.Sub(w.hurried) >= resolution {
		w.hurried = now
	}
	return now.Sub(w.hurried) < haste
}

// Watch begins a watch in place of the one of that key; a nil watch ends that. The nodes of its pods are measured about every second, or so
// often that the measurements take at most 2 % of the time, and sooner for a moment when the usage is about to leave a bound. That lasts as
// long as clients ask for the nodes too: where another server answers for metrics.k8s.io, nothing is measured. A node that has not been
// asked for is not watched. A nil server watches nothing.
func (s *Server) Watch(key types.NamespacedName, of *Watch) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var hurried time.Time
	if former := s.watches[key]; former != nil {
		hurried = former.hurried
	}
	s.unwatch(key)
	if of == nil || len(of.Bounds) == 0 || s.closed {
		return
	}
	w := &watch{bounds: of.Bounds, began: make([]float64, len(of.Bounds)), wake: of.Wake, hurried: hurried}
	at := map[string]int{}
	for _, p := range of.Pods {
		if s.nodes[p.Node] == nil {
			continue
		}
		i, ok := at[p.Node]
		if !ok {
			i = len(w.shares)
			at[p.Node] = i
			w.shares = append(w.shares, share{of: w, node: p.Node, uses: make([]use, len(of.Bounds))})
		}
		w.shares[i].pods = append(w.shares[i].pods, sharedPod{podKey: podKey{p.Namespace, p.Name}})
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
		w.began[i], _ = w.sum(i)
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
	now := time.Now()
	for sh := range n.shares {
		sh.measure(n)
		if w := sh.of; w.check() && w.hastens(now) {
			for i := range w.shares {
				s.hasten(s.nodes[w.shares[i].node])
			}
		}
	}
}

// hasten has a node measured sooner, once. The caller holds the lock.
func (s *Server) hasten(n *node) {
	if n == nil || n.hurries {
		return
	}
	n.hurries = true
	if n.again != nil && n.again.Stop() {
		n.again = nil
		s.follow(n)
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
	if n.hurries {
		pause = min(pause, hurry)
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

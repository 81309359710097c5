// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/mortise-dev/mortise/store"
)

// Scope tells which changes a watch may have to send, so that no others wake it. The zero value is all of them.
//
// Each of the 5,000 kubelets of a cluster watches its own pods, its own node, and a few Secrets and ConfigMaps by their names. A change
// wakes one of them, not 5,000.
type Scope struct {
	by    criterion
	value string
}

type criterion uint8

const (
	byKey criterion = iota + 1
	byName
	byNode
	byNamespace
)

// NodeName is the field of [ByNode], which pods, ResourceSlices and PodCertificateRequests have.
const NodeName = "spec.nodeName"

// anyNode is no name of a node.
const anyNode = "*"

// all reports whether all changes are in the scope.
func (s Scope) all() bool { return s == Scope{} }

// ByKey is the scope of one object, which is stored under a key.
func ByKey(key string) Scope { return Scope{byKey, key} }

// ByName is the scope of the objects of a name, in all namespaces.
func ByName(name string) Scope { return Scope{byName, name} }

// ByNode is the scope of the objects whose field [NodeName] has a value, before or after the change.
func ByNode(node string) Scope { return Scope{byNode, node} }

// ByNamespace is the scope of the objects of a namespace, whose keys begin with a prefix that ends with a slash.
func ByNamespace(prefix string) Scope { return Scope{byNamespace, prefix} }

// waiting are the cursors that wait for the next batch, by their scopes. A cursor whose scope is all changes stays at the last node of the
// list. Any other is parked: it has no position, and so keeps no node of the list alive. Before a change for it, it continues.
type waiting struct {
	byNode atomic.Int64 // cursors whose scope is that of a cluster node, whether they wait or not

	mu       sync.Mutex
	cursors  map[Scope][]*Cursor
	examined *node // up to and with this one, there is nothing for the parked cursors
}

// begin is called with the first node of the feed, before it has cursors, and again if the feed begins anew after its end.
func (w *waiting) begin(n *node) {
	w.end()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cursors, w.examined = map[Scope][]*Cursor{}, n
}

// wake has the cursors continue whose scopes the batch at the end of the list concerns: it rouses them, and then has them begin.
func (w *waiting) wake(k *Kind, n *node) { start(w.take(n, w.nodeNames(k, n))) }

// end wakes all cursors at the end of the feed.
func (w *waiting) end() { start(w.takeAll()) }

func start(rouses []func() (begin func())) {
	var all []func()
	for _, rouse := range rouses {
		if begin := rouse(); begin != nil {
			all = append(all, begin)
		}
	}
	for _, begin := range all {
		begin()
	}
}

// nodeNames returns the values of spec.nodeName before and after the changes of a batch, if a cursor has such a scope. An object that
// cannot be decoded counts as one of every cluster node: the watches report it.
func (w *waiting) nodeNames(k *Kind, n *node) (names []string) {
	if w.byNode.Load() == 0 { // the batch is in the list already: a cursor that begins from now on does not wait for it
		return nil
	}
	for i := range n.events {
		for _, r := range []*store.Record{n.events[i].Previous, n.events[i].Record} {
			if r == nil {
				continue
			}
			f, err := k.Cached(r)
			if err != nil {
				return []string{anyNode}
			}
			names = append(names, f.Fields()[NodeName])
		}
	}
	return names
}

// take ends the wait of the cursors whose scopes a batch concerns, and returns what rouses them.
func (w *waiting) take(n *node, nodeNames []string) (rouses []func() (begin func())) {
	w.mu.Lock()
	defer w.mu.Unlock()
	rouses = w.release(Scope{}, nil)
	for i := 0; i < len(n.events) && len(w.cursors) > 1; i++ {
		key := n.events[i].Key
		end := strings.LastIndexByte(key, '/') + 1
		rouses = w.release(ByKey(key), rouses)
		rouses = w.release(ByName(key[end:]), rouses)
		rouses = w.release(ByNamespace(key[:end]), rouses)
	}
	for _, name := range nodeNames {
		if name != anyNode {
			rouses = w.release(ByNode(name), rouses)
			continue
		}
		for scope := range w.cursors {
			if scope.by == byNode {
				rouses = w.release(scope, rouses)
			}
		}
	}
	w.examined = n
	return rouses
}

func (w *waiting) takeAll() (rouses []func() (begin func())) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for scope := range w.cursors {
		rouses = w.release(scope, rouses)
	}
	return rouses
}

// release ends the wait of the cursors of a scope, and appends what rouses them. The caller holds the mutex.
func (w *waiting) release(scope Scope, rouses []func() (begin func())) []func() (begin func()) {
	cursors := w.cursors[scope]
	rouses = slices.Grow(rouses, len(cursors))
	for _, c := range cursors {
		rouses = append(rouses, c.rouse)
		c.rouse, c.place = nil, 0
		c.unpark()
	}
	clear(cursors)
	if scope.all() {
		w.cursors[scope] = cursors[:0] // its place is used again for each change
	} else if cursors != nil {
		delete(w.cursors, scope)
	}
	return rouses
}

// add has a cursor wait. The caller holds the mutex.
func (w *waiting) add(c *Cursor, rouse func() (begin func())) {
	if c.place == 0 {
		w.cursors[c.scope] = append(w.cursors[c.scope], c)
		c.place = len(w.cursors[c.scope])
	}
	c.rouse = rouse
	if !c.scope.all() {
		c.at = nil
	}
}

// leave ends a cursor's wait.
func (w *waiting) leave(c *Cursor) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.place == 0 {
		return
	}
	cursors := w.cursors[c.scope]
	last := len(cursors) - 1
	moved := cursors[last]
	cursors[c.place-1], moved.place = moved, c.place
	cursors[last] = nil
	c.rouse, c.place = nil, 0
	c.unpark()
	if last == 0 && !c.scope.all() {
		delete(w.cursors, c.scope)
	} else {
		w.cursors[c.scope] = cursors[:last]
	}
}

// unpark gives a parked cursor its position back. The caller holds the mutex of the waiting.
func (c *Cursor) unpark() {
	if c.at == nil {
		c.at = c.feed.waiting.examined
		c.after = max(c.after, c.at.revision)
	}
}

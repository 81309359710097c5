// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/objectversion"
)

// ExpectationsTimeout is how long an owner waits for events of its own writes before it trusts the cache again.
const ExpectationsTimeout = 5 * time.Minute

// Expectations remember, for each owner, which of its own creations and deletions of children the cache has yet to show.
// As long as something is outstanding the cache is known to be behind, and acting on it would do the work twice.
//
// Example: a ReplicaSet lacks 3 pods. ExpectCreations(rs, 3); three pods are created; before the watch delivers them the
// ReplicaSet's own status write wakes the controller. The cache still shows no pods, but Satisfied is false, so it leaves
// them alone. Each pod's add event calls CreationObserved, and after the third the cache may be believed.
//
// Creations are counted, since a name is not known before the server gives it. Deletions are remembered by UID, since
// one deletion can show itself twice: when the deletion timestamp is set, and when the object goes.
type Expectations struct {
	clock clock.PassiveClock
	mu    sync.Mutex
	of    map[types.NamespacedName]*expectation
}

type expectation struct {
	creations int
	deletions map[types.UID]bool
	since     time.Time
}

// NewExpectations makes an empty set.
func NewExpectations(c clock.PassiveClock) *Expectations {
	return &Expectations{clock: c, of: map[types.NamespacedName]*expectation{}}
}

// Expect says that owner is about to create n children and to delete those with the given UIDs.
func (e *Expectations) Expect(owner types.NamespacedName, creations int, deletions ...types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := &expectation{creations: creations, deletions: map[types.UID]bool{}, since: e.clock.Now()}
	for _, uid := range deletions {
		x.deletions[uid] = true
	}
	e.of[owner] = x
}

// CreationObserved takes one expected creation off: it was seen, or it failed and never will be. It tells whether that
// was the last thing expected.
func (e *Expectations) CreationObserved(owner types.NamespacedName) (last bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.of[owner]
	if x == nil || x.creations == 0 {
		return false
	}
	x.creations--
	return x.fulfilled()
}

// DeletionObserved takes the expected deletion of a child off. It tells whether that was the last thing expected.
func (e *Expectations) DeletionObserved(owner types.NamespacedName, child types.UID) (last bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.of[owner]
	if x == nil || !x.deletions[child] {
		return false
	}
	delete(x.deletions, child)
	return x.fulfilled()
}

func (x *expectation) fulfilled() bool { return x.creations <= 0 && len(x.deletions) == 0 }

// Satisfied tells whether the cache shows all that owner did. When not, wait is how long until it may be trusted anyway.
func (e *Expectations) Satisfied(owner types.NamespacedName) (ok bool, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.of[owner]
	if x == nil || x.fulfilled() {
		return true, 0
	}
	if wait = x.since.Add(ExpectationsTimeout).Sub(e.clock.Now()); wait <= 0 {
		delete(e.of, owner)
		return true, 0
	}
	return false, wait
}

// Forget drops what is remembered of an owner that is gone.
func (e *Expectations) Forget(owner types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.of, owner)
}

// Writes remember, for each owner, the last version of it that this controller wrote, so that a decision is not made from
// an older one that the cache still shows. A job whose status said "this pod is counted" a moment ago would otherwise
// look, from its former version and the pod's newest, as if the pod had never been.
type Writes struct {
	mu sync.Mutex
	at map[types.NamespacedName]written
}

type written struct {
	uid     types.UID
	version string
}

// NewWrites makes an empty set.
func NewWrites() *Writes { return &Writes{at: map[types.NamespacedName]written{}} }

// Note remembers what a write returned.
func (w *Writes) Note(o metav1.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at[types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}] = written{o.GetUID(), o.GetResourceVersion()}
}

// Shown tells whether the cached object is at least as new as the last write. When not, its event is on the way.
func (w *Writes) Shown(o metav1.Object) bool {
	key := types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}
	w.mu.Lock()
	defer w.mu.Unlock()
	last, ok := w.at[key]
	if !ok || last.uid != o.GetUID() {
		return true
	}
	if objectversion.Less(o.GetResourceVersion(), last.version) {
		return false
	}
	delete(w.at, key)
	return true
}

// Forget drops what is remembered of an owner that is gone.
func (w *Writes) Forget(owner types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.at, owner)
}

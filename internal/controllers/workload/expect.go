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

// Expectations record, for each owner, which of its own creations and deletions of children the cache does not show yet. While one is
// outstanding, the cache is behind, and a sync that trusts it would repeat the work.
//
// Example: a ReplicaSet lacks 3 pods. The controller calls Expect(rs, 3) and creates three pods; before the watch delivers them, its own
// status write requeues the ReplicaSet. The cache still shows no pods, but Satisfied returns false, so the controller creates none. Each
// pod's add event calls CreationObserved; after the third, the controller trusts the cache.
//
// Creations are counted, since the server chooses the names. Deletions are recorded by UID, since the controller may observe one deletion
// twice: when the deletion timestamp is set, and when the object is gone.
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

// NewExpectations returns an empty set.
func NewExpectations(c clock.PassiveClock) *Expectations {
	return &Expectations{clock: c, of: map[types.NamespacedName]*expectation{}}
}

// Expect records that owner is about to create that many children and to delete those with the given UIDs.
func (e *Expectations) Expect(owner types.NamespacedName, creations int, deletions ...types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := &expectation{creations: creations, deletions: map[types.UID]bool{}, since: e.clock.Now()}
	for _, uid := range deletions {
		x.deletions[uid] = true
	}
	e.of[owner] = x
}

// CreationObserved removes one expected creation: the controller observed it, or it failed. It reports whether that was the last
// expectation.
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

// DeletionObserved removes the expected deletion of a child. It reports whether that was the last expectation.
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

// Satisfied reports whether the cache shows all of the owner's writes. If not, wait is how long until the controller may trust the cache
// anyway.
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

// Forget drops the expectations of a deleted owner.
func (e *Expectations) Forget(owner types.NamespacedName) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.of, owner)
}

// Writes record, for each owner, the last version of it that this controller wrote, so that the controller does not decide from an older
// cached version. Suppose that a job's status counted a pod a moment ago: the job's former version and the pod's newest would make it look
// as if the pod had never existed.
type Writes struct {
	mu sync.Mutex
	at map[types.NamespacedName]written
}

type written struct {
	uid     types.UID
	version string
}

// NewWrites returns an empty set.
func NewWrites() *Writes { return &Writes{at: map[types.NamespacedName]written{}} }

// Note records the result of a write.
func (w *Writes) Note(o metav1.Object) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.at[types.NamespacedName{Namespace: o.GetNamespace(), Name: o.GetName()}] = written{o.GetUID(), o.GetResourceVersion()}
}

// Shown reports whether the cached object is at least as new as the last write. If not, its event is on the way.
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

// Forget drops the record of a deleted owner.
func (w *Writes) Forget(owner types.NamespacedName) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.at, owner)
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers

import (
	"cmp"
	"container/heap"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/resource"
)

// objectRef names an object.
type objectRef struct {
	schema.GroupResource
	namespace, name string
}

// String formats the reference for people.
func (p objectRef) String() string {
	if p.namespace == "" {
		return p.GroupResource.String() + " " + p.name
	}
	return p.GroupResource.String() + " " + p.namespace + "/" + p.name
}

// waits is one waiting object.
type waits struct {
	objectRef
	uid      types.UID
	on       v1alpha1.Initializers
	rejected bool
	due      time.Time // when Run must act on it
	failures int       // consecutive failures to act on it
	index    int       // in the queue
}

// head returns the next pending initializer.
func (w *waits) head() *v1alpha1.Pending { return &w.on.Pending[0] }

// until returns the deadline of the next initializer.
func (w *waits) until() time.Time {
	return w.on.Since.Add(time.Duration(cmp.Or(w.head().DeadlineSeconds, v1alpha1.DefaultDeadlineSeconds)) * time.Second)
}

// held contains all waiting objects in a queue, the soonest due first.
type held struct {
	mu    sync.Mutex
	all   map[objectRef]*waits
	queue queue
	woken chan struct{} // receives when the soonest deadline may have changed
}

func newHeld() *held {
	return &held{all: map[objectRef]*waits{}, woken: make(chan struct{}, 1)}
}

// turn is the outcome of one initializer's turn.
type turn struct {
	waits  *waits
	result string
}

// The outcomes of a turn.
const (
	finished = "finished" // the initializer removed itself
	rejected = "rejected" // a result was written
	deleted  = "deleted"  // the object was deleted during the turn
)

// see records what an object waits for now; nil: nothing, or it is deleted. It returns the turn that ended with this
// change, if any.
func (h *held) see(at objectRef, obj resource.Object, gone bool) *turn {
	h.mu.Lock()
	defer h.mu.Unlock()
	was := h.all[at]
	var is *waits
	if obj != nil {
		if i, err := v1alpha1.InitializersOf(obj); err == nil && i != nil && !i.Done() {
			is = &waits{objectRef: at, uid: obj.GetUID(), on: *i, rejected: i.Result != nil}
			if len(is.on.Pending) == 0 {
				is.on.Pending = []v1alpha1.Pending{{}} // rejected without a name
			}
			is.due = is.until()
			if is.rejected {
				is.due = time.Time{} // at once
			}
		}
	}
	if was != nil {
		heap.Remove(&h.queue, was.index)
		delete(h.all, at)
	}
	if is != nil {
		h.all[at] = is
		heap.Push(&h.queue, is)
		if is.index == 0 {
			h.wake()
		}
	}
	return ended(was, is, gone)
}

func ended(was, is *waits, gone bool) *turn {
	switch {
	case was == nil || was.rejected:
		return nil
	case is == nil && gone, is != nil && is.uid != was.uid:
		return &turn{was, deleted}
	case is == nil:
		return &turn{was, finished}
	case is.rejected:
		return &turn{is, rejected}
	case is.head().Name != was.head().Name:
		return &turn{was, finished}
	}
	return nil
}

func (h *held) wake() {
	select {
	case h.woken <- struct{}{}:
	default: // Run looks at the queue anyway
	}
}

// next takes the object that is due out of the queue. Otherwise it returns when to call it again; zero: when woken.
func (h *held) next(now time.Time) (due *waits, again time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.queue) == 0 {
		return nil, time.Time{}
	}
	w := h.queue[0]
	if w.due.After(now) {
		return nil, w.due
	}
	// a successful action comes back as a change of the object; after a failure the object is due again later
	w.due = now.Add(min(time.Second<<min(w.failures, 6), time.Minute))
	w.failures++
	heap.Fix(&h.queue, 0)
	c := *w
	return &c, time.Time{}
}

// waiting returns the waiting objects for the extension ledger.
func (h *held) waiting() map[extension.Ref][]extension.Waiting {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[extension.Ref][]extension.Waiting{}
	for at, w := range h.all {
		if w.rejected {
			continue
		}
		ref := extension.Ref{Point: extension.Initializer, Name: w.head().Name}
		out[ref] = append(out[ref], extension.Waiting{Object: at.String(), Since: w.on.Since.Time, Until: w.until()})
	}
	return out
}

// queue implements [heap.Interface].
type queue []*waits

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].due.Before(q[j].due) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

func (q *queue) Push(x any) {
	w := x.(*waits)
	w.index = len(*q)
	*q = append(*q, w)
}

func (q *queue) Pop() any {
	old := *q
	w := old[len(old)-1]
	old[len(old)-1] = nil
	*q = old[:len(old)-1]
	return w
}

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

// waits is one object that waits.
type waits struct {
	objectRef
	uid      types.UID
	on       v1alpha1.Initializers
	rejected bool
	due      time.Time // when something is to be done about it
	failures int       // of doing it
	index    int       // in the queue
}

// head is the initializer that comes next.
func (w *waits) head() *v1alpha1.Pending { return &w.on.Pending[0] }

// until is when the head's time is over.
func (w *waits) until() time.Time {
	return w.on.Since.Add(time.Duration(cmp.Or(w.head().DeadlineSeconds, v1alpha1.DefaultDeadlineSeconds)) * time.Second)
}

// held is all that waits, the soonest due first.
type held struct {
	mu    sync.Mutex
	all   map[objectRef]*waits
	queue queue
	woken chan struct{} // told when the soonest may be another
}

func newHeld() *held {
	return &held{all: map[objectRef]*waits{}, woken: make(chan struct{}, 1)}
}

// turn is what became of an initializer's turn.
type turn struct {
	waits  *waits
	result string
}

// What becomes of a turn.
const (
	finished = "finished" // it took itself off
	rejected = "rejected" // a result was written
	deleted  = "deleted"  // the object went while it was waited for
)

// see takes in what an object waits for now, nil: for nothing or it is gone; and tells whose turn that ended.
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
	default: // it will look anyway
	}
}

// next takes what is due out of the queue; or says when to look again, zero: when woken.
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
	// whatever is done, its event comes back; should it fail, it is due again after a while
	w.due = now.Add(min(time.Second<<min(w.failures, 6), time.Minute))
	w.failures++
	heap.Fix(&h.queue, 0)
	c := *w
	return &c, time.Time{}
}

// waiting is what the ledger tells.
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

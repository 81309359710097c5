// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devices

import (
	"errors"
	"fmt"
	"sync"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/structured"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/objectversion"
)

// Claims are the ResourceClaims: those from the API, the assumed ones, and those whose allocation is in flight. It is safe for concurrent
// use.
type Claims struct {
	mu      sync.RWMutex
	told    map[string]*resourcev1.ResourceClaim // by namespace/name
	assumed map[string]*resourcev1.ResourceClaim // newer than the informer's
	flights map[types.UID]*flight
	taken   *taken // by claims from informers or assumed ones
	next    chan struct{}

	hearers []cache.ResourceEventHandler
}

// flight is an allocation that is about to be written.
type flight struct {
	claim   *resourcev1.ResourceClaim
	sharers int
}

var _ fwk.ResourceClaimTracker = (*Claims)(nil)

// NewClaims returns an empty set.
func NewClaims() *Claims {
	return &Claims{
		told: map[string]*resourcev1.ResourceClaim{}, assumed: map[string]*resourcev1.ResourceClaim{},
		flights: map[types.UID]*flight{}, taken: newTaken(), next: make(chan struct{}),
	}
}

func key(o metav1.Object) string { return cache.MetaObjectToName(o).String() }

// Hear adds a handler that is called after each change. It must be called before there are any claims.
func (c *Claims) Hear(h cache.ResourceEventHandler) { c.hearers = append(c.hearers, h) }

// Changed returns a channel that the next change closes.
func (c *Claims) Changed() <-chan struct{} {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.next
}

func (c *Claims) ring() {
	close(c.next)
	c.next = make(chan struct{})
}

// now returns the assumed claim, or else the informer's.
func (c *Claims) now(name string) *resourcev1.ResourceClaim {
	if claim := c.assumed[name]; claim != nil {
		return claim
	}
	return c.told[name]
}

// change replaces a claim's informer state and assumption by the results of f, of which nil means none, and calls the handlers.
func (c *Claims) change(name string, initial bool, f func(told, assumed *resourcev1.ResourceClaim) (t, a *resourcev1.ResourceClaim)) {
	put := func(m map[string]*resourcev1.ResourceClaim, claim *resourcev1.ResourceClaim) {
		if claim == nil {
			delete(m, name)
		} else {
			m[name] = claim
		}
	}
	c.mu.Lock()
	old := c.now(name)
	told, assumed := f(c.told[name], c.assumed[name])
	put(c.told, told)
	put(c.assumed, assumed)
	claim := c.now(name)
	if old != claim {
		c.taken.count(old, -1)
		c.taken.count(claim, 1)
		c.ring()
	}
	c.mu.Unlock()
	c.tell(old, claim, initial)
}

// tell calls the handlers, which may call back.
func (c *Claims) tell(old, claim *resourcev1.ResourceClaim, initial bool) {
	for _, h := range c.hearers {
		switch {
		case old == claim:
		case old == nil:
			h.OnAdd(claim, initial)
		case claim == nil:
			h.OnDelete(old)
		default:
			h.OnUpdate(old, claim)
		}
	}
}

// Handler returns the handler of the informer's events.
func (c *Claims) Handler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerDetailedFuncs{
		AddFunc:    c.learn,
		UpdateFunc: func(_, obj any) { c.learn(obj, false) },
		DeleteFunc: func(obj any) {
			if t, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = t.Obj
			}
			if claim, ok := obj.(*resourcev1.ResourceClaim); ok {
				c.change(key(claim), false, func(_, _ *resourcev1.ResourceClaim) (t, a *resourcev1.ResourceClaim) { return nil, nil })
			}
		},
	}
}

func (c *Claims) learn(obj any, initial bool) {
	claim, ok := obj.(*resourcev1.ResourceClaim)
	if !ok {
		return
	}
	c.change(key(claim), initial, func(_, assumed *resourcev1.ResourceClaim) (t, a *resourcev1.ResourceClaim) {
		if assumed != nil && objectversion.Older(claim, assumed) {
			return claim, assumed
		}
		return claim, nil
	})
}

// List returns all claims.
func (c *Claims) List() ([]*resourcev1.ResourceClaim, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	all := make([]*resourcev1.ResourceClaim, 0, len(c.told))
	for name := range c.told {
		all = append(all, c.now(name))
	}
	return all, nil
}

// Get returns one claim.
func (c *Claims) Get(namespace, name string) (*resourcev1.ResourceClaim, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if claim := c.now(namespace + "/" + name); claim != nil {
		return claim, nil
	}
	return nil, absent(namespace + "/" + name)
}

// ErrNotFound is the error for unknown claims.
var ErrNotFound = errors.New("claim not found")

type absent string

func (name absent) Error() string {
	return fmt.Sprintf("could not find ResourceClaim %q", string(name))
}                                   // upstream's words
func (absent) Is(target error) bool { return target == ErrNotFound }

// ListAllAllocatedDevices returns the devices that some claim has alone, or shares.
func (c *Claims) ListAllAllocatedDevices() (sets.Set[structured.DeviceID], error) {
	state, err := c.GatherAllocatedState()
	if err != nil {
		return nil, err
	}
	return state.AllocatedDevices, nil
}

// GatherAllocatedState returns all allocations: of the informer, assumed, and in flight.
func (c *Claims) GatherAllocatedState() (*structured.AllocatedState, error) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	state := c.taken.state()
	for uid, f := range c.flights {
		if written := c.now(key(f.claim)); written == nil || written.UID != uid || written.Status.Allocation == nil {
			add(state, f.claim)
		}
	}
	return state, nil
}

// SignalClaimPendingAllocation records that the claim's allocation, which the given claim contains, is in flight.
func (c *Claims) SignalClaimPendingAllocation(uid types.UID, allocated *resourcev1.ResourceClaim) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if f := c.flights[uid]; f != nil {
		f.sharers++
		return nil
	}
	if allocated.ResourceVersion != "" { // otherwise the claim is yet to be created
		claim := c.now(key(allocated))
		if claim == nil {
			return fmt.Errorf("look up assumed claim %s, UID=%s: %w", key(allocated), uid, absent(key(allocated))) // upstream's words
		}
		if claim.UID == uid && claim.Status.Allocation != nil {
			return nil
		}
	}
	c.flights[uid] = &flight{claim: allocated, sharers: 1}
	return nil
}

// GetPendingAllocation returns the allocation that is in flight, or nil.
func (c *Claims) GetPendingAllocation(uid types.UID) *resourcev1.AllocationResult {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if f := c.flights[uid]; f != nil {
		return f.claim.Status.Allocation
	}
	return nil
}

// MaybeRemoveClaimPendingAllocation ends an in-flight allocation, unless others share it and it is not forced. An abandoned
// one counts as a deallocation, and handlers are called for it.
func (c *Claims) MaybeRemoveClaimPendingAllocation(uid types.UID, force bool) (deleted bool) {
	c.mu.Lock()
	f := c.flights[uid]
	if f == nil {
		c.mu.Unlock()
		return false
	}
	if !force && f.sharers > 1 {
		f.sharers--
		c.mu.Unlock()
		return false
	}
	delete(c.flights, uid)
	claim := c.now(key(f.claim))
	c.ring()
	c.mu.Unlock()
	switch {
	case force: // it is written
	case claim == nil || claim.UID != uid:
		c.tell(f.claim, nil, false)
	case claim.Status.Allocation == nil:
		c.tell(f.claim, claim, false)
	}
	return true
}

// AssumeClaimAfterAPICall assumes the claim in the API's response, until the informer has one that is as new.
func (c *Claims) AssumeClaimAfterAPICall(claim *resourcev1.ResourceClaim) (err error) {
	c.change(key(claim), false, func(told, assumed *resourcev1.ResourceClaim) (t, a *resourcev1.ResourceClaim) {
		switch {
		case told == nil:
			err = absent(key(claim))
		case told.UID != claim.UID:
			err = fmt.Errorf("claim %s is another by now, UID=%s", key(claim), told.UID)
		case objectversion.Older(told, claim) && (assumed == nil || objectversion.Older(assumed, claim)):
			return told, claim
		}
		return told, assumed
	})
	return err
}

// AssumedClaimRestore drops the assumption.
func (c *Claims) AssumedClaimRestore(namespace, name string) {
	c.change(namespace+"/"+name, false, func(told, _ *resourcev1.ResourceClaim) (t, a *resourcev1.ResourceClaim) { return told, nil })
}

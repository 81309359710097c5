// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package garbagecollector

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// object is the graph's record of one object: its name, its owners, and its deletion, if any.
type object struct {
	*resourceKind
	uid             types.UID
	namespace, name string
	version         string // resourceVersion, the precondition of every write
	owners          []metav1.OwnerReference
	deleting        bool
	finalizers      []string // only while the object is being deleted
}

// resourceKind is what the objects of a resource have in common.
type resourceKind struct {
	resource schema.GroupVersionResource
	kind     string
}

// foreground reports whether o waits for its dependents to be deleted; orphaning reports whether o waits for them to be released.
func (o *object) foreground() bool {
	return o.deleting && slices.Contains(o.finalizers, metav1.FinalizerDeleteDependents)
}

func (o *object) orphaning() bool {
	return o.deleting && slices.Contains(o.finalizers, metav1.FinalizerOrphanDependents)
}

// ownerKey identifies the object of an owner reference, as seen from a namespace.
type ownerKey struct {
	uid             types.UID
	group, kind     string
	namespace, name string
}

func keyOf(ref metav1.OwnerReference, namespace string) ownerKey {
	gv, _ := schema.ParseGroupVersion(ref.APIVersion) // an invalid version has no group and is found nowhere
	return ownerKey{uid: ref.UID, group: gv.Group, kind: ref.Kind, namespace: namespace, name: ref.Name}
}

// graph holds the observed owner references. It does no I/O; its methods that take observations return the UIDs of the objects to judge
// again.
type graph struct {
	objects    map[types.UID]*object
	dependents map[types.UID]map[types.UID]bool // by owner, observed or not
	absent     map[ownerKey]bool                // owners known to be gone; a UID is never reused
}

// mostAbsent bounds the number of absent owners in memory; the collector asks again for one that it forgot.
const mostAbsent = 100_000

func newGraph() *graph {
	return &graph{objects: map[types.UID]*object{}, dependents: map[types.UID]map[types.UID]bool{}, absent: map[ownerKey]bool{}}
}

// astray is an object with an owner in another namespace.
type astray struct {
	child *object
	owner types.UID
}

// observe records the state of an object. lost are the objects that have an owner in another namespace, as this observation reveals.
func (g *graph) observe(o *object) (wake []types.UID, lost []astray) {
	before := g.objects[o.uid]
	g.objects[o.uid] = o
	var had []metav1.OwnerReference
	if before != nil {
		had = before.owners
	}
	for _, ref := range had {
		if current := reference(o, ref.UID); current == nil {
			g.unlink(ref.UID, o.uid)
			wake = append(wake, ref.UID) // the owner may have waited for this object
		} else if blocks(ref) && !blocks(*current) {
			wake = append(wake, ref.UID)
		}
	}
	for _, ref := range o.owners {
		owner := g.objects[ref.UID]
		isNew := before == nil || reference(before, ref.UID) == nil
		if isNew && owner != nil && owner.namespace != "" && owner.namespace != o.namespace {
			lost = append(lost, astray{o, ref.UID})
		}
		if g.dependents[ref.UID] == nil {
			g.dependents[ref.UID] = map[types.UID]bool{}
		}
		g.dependents[ref.UID][o.uid] = true
	}
	if before == nil {
		for uid := range g.dependents[o.uid] {
			child := g.objects[uid]
			if child == nil || g.means(keyOf(*reference(child, o.uid), child.namespace), o) {
				continue
			}
			wake = append(wake, uid)
			if o.namespace != "" && child.namespace != o.namespace {
				lost = append(lost, astray{child, o.uid})
			}
		}
	}
	if len(o.owners) > 0 || o.foreground() || o.orphaning() {
		wake = append(wake, o.uid)
	}
	if o.foreground() && (before == nil || !before.foreground()) {
		for child := range g.dependents[o.uid] {
			wake = append(wake, child)
		}
	}
	return wake, lost
}

// remove records the deletion of an object.
func (g *graph) remove(uid types.UID) (wake []types.UID) {
	o := g.objects[uid]
	if o == nil {
		return nil
	}
	delete(g.objects, uid)
	for _, ref := range o.owners {
		g.unlink(ref.UID, uid)
		wake = append(wake, ref.UID)
	}
	if len(g.dependents[uid]) > 0 {
		g.noteAbsent(ownerKey{uid: uid, group: o.resource.Group, kind: o.kind, namespace: o.namespace, name: o.name})
		for child := range g.dependents[uid] {
			wake = append(wake, child)
		}
	}
	return wake
}

func (g *graph) unlink(owner, child types.UID) {
	delete(g.dependents[owner], child)
	if len(g.dependents[owner]) == 0 {
		delete(g.dependents, owner)
	}
}

func (g *graph) noteAbsent(k ownerKey) {
	if len(g.absent) >= mostAbsent {
		clear(g.absent)
	}
	g.absent[k] = true
}

func reference(o *object, owner types.UID) *metav1.OwnerReference {
	for i := range o.owners {
		if o.owners[i].UID == owner {
			return &o.owners[i]
		}
	}
	return nil
}

func blocks(ref metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}

// verdict is what to do about an object; at most one of the fields is set.
type verdict struct {
	// ask the server whether these owners exist, record the answers, and judge again.
	ask []ownerKey
	// release these dependents from this object: remove their references to it, then its orphan finalizer.
	release []*object
	letGo   bool
	// finish removes the foreground finalizer: no dependent blocks the object any more.
	finish bool
	// wake these dependents, which block the deletion.
	wake []types.UID
	// keep these owner references and drop the others.
	keep []metav1.OwnerReference
	trim bool
	// delete the object with this policy. If it is part of a cycle, it first stops blocking its owners.
	policy  metav1.DeletionPropagation
	unblock bool
}

// writes reports whether the verdict takes requests that write.
func (v verdict) writes() bool { return v.letGo || v.finish || v.trim || v.policy != "" }

// judge decides about an object. known are the owners that exist according to the server, which the caller asked for this judgement.
//
// An owner is solid if it exists and does not wait for its dependents. An object with a solid owner stays, without its references to owners
// that are gone or waiting. An object without a solid owner is deleted: in the foreground if an owner waits for it and it has dependents
// itself, else as its own finalizers request, else in the background.
func (g *graph) judge(uid types.UID, known map[ownerKey]bool) verdict {
	o := g.objects[uid]
	if o == nil {
		return verdict{}
	}
	if o.orphaning() {
		v := verdict{letGo: true}
		for child := range g.dependents[uid] {
			if c := g.objects[child]; c != nil {
				v.release = append(v.release, c)
			}
		}
		return v
	}
	if o.foreground() {
		var v verdict
		for child := range g.dependents[uid] {
			if c := g.objects[child]; c != nil && blocks(*reference(c, uid)) {
				v.wake = append(v.wake, child)
			}
		}
		v.finish = len(v.wake) == 0
		return v
	}
	if o.deleting || len(o.owners) == 0 {
		return verdict{}
	}
	var solid, lost, waiting []metav1.OwnerReference
	var ask []ownerKey
	for _, ref := range o.owners {
		key := keyOf(ref, o.namespace)
		everywhere := key
		everywhere.namespace = ""
		owner := g.objects[ref.UID]
		switch {
		case owner != nil && g.means(key, owner):
			if owner.foreground() {
				waiting = append(waiting, ref)
			} else {
				solid = append(solid, ref)
			}
		case known[key]:
			solid = append(solid, ref)
		case g.absent[key] || g.absent[everywhere]:
			lost = append(lost, ref)
		default:
			ask = append(ask, key)
		}
	}
	switch {
	case len(ask) > 0:
		return verdict{ask: ask}
	case len(solid) > 0 && len(lost)+len(waiting) > 0:
		return verdict{trim: true, keep: solid}
	case len(solid) > 0:
		return verdict{}
	case len(waiting) > 0 && len(g.dependents[uid]) > 0:
		v := verdict{policy: metav1.DeletePropagationForeground}
		for child := range g.dependents[uid] {
			if c := g.objects[child]; c != nil && c.foreground() {
				v.unblock = true // each would wait for the other
			}
		}
		return v
	case slices.Contains(o.finalizers, metav1.FinalizerOrphanDependents):
		return verdict{policy: metav1.DeletePropagationOrphan}
	case slices.Contains(o.finalizers, metav1.FinalizerDeleteDependents):
		return verdict{policy: metav1.DeletePropagationForeground}
	}
	return verdict{policy: metav1.DeletePropagationBackground}
}

// means reports whether a reference refers to that object: its kind and name match, and it is not in another namespace.
func (g *graph) means(key ownerKey, owner *object) bool {
	return key.group == owner.resource.Group && key.kind == owner.kind && key.name == owner.name &&
		(owner.namespace == "" || owner.namespace == key.namespace)
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package garbagecollector

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// object is what the graph knows of one object: where it is, who owns it, whether and how it is being deleted.
type object struct {
	uid             types.UID
	resource        schema.GroupVersionResource
	kind            string
	namespace, name string
	version         string // resourceVersion, the precondition of every write
	owners          []metav1.OwnerReference
	deleting        bool
	finalizers      []string // of objects that are being deleted
}

// foreground tells whether o waits for its dependents to be deleted, orphaning whether they are to be let go first.
func (o *object) foreground() bool {
	return o.deleting && slices.Contains(o.finalizers, metav1.FinalizerDeleteDependents)
}

func (o *object) orphaning() bool {
	return o.deleting && slices.Contains(o.finalizers, metav1.FinalizerOrphanDependents)
}

// ownerKey says which object an owner reference means, seen from a namespace.
type ownerKey struct {
	uid             types.UID
	group, kind     string
	namespace, name string
}

func keyOf(ref metav1.OwnerReference, namespace string) ownerKey {
	gv, _ := schema.ParseGroupVersion(ref.APIVersion) // an unreadable one names no group and is found nowhere
	return ownerKey{uid: ref.UID, group: gv.Group, kind: ref.Kind, namespace: namespace, name: ref.Name}
}

// graph has the observed owner references. It does no I/O; the methods that take observations return the UIDs of the
// objects to check again.
type graph struct {
	objects    map[types.UID]*object
	dependents map[types.UID]map[types.UID]bool // owner → those that name it, whether or not it was ever observed
	absent     map[ownerKey]bool                // owners known to be gone; a UID never comes back
}

// mostAbsent bounds what is remembered of absent owners; what is forgotten is asked again.
const mostAbsent = 100_000

func newGraph() *graph {
	return &graph{objects: map[types.UID]*object{}, dependents: map[types.UID]map[types.UID]bool{}, absent: map[ownerKey]bool{}}
}

// astray is an object with an owner in another namespace.
type astray struct {
	child *object
	owner types.UID
}

// observe takes the state of an object in. Lost are those of which it shows that they have an owner in another namespace.
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
			wake = append(wake, ref.UID) // it may have waited for this one
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

// remove takes in that an object is gone.
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

// verdict is what is to be done about an object; at most one of the fields is set.
type verdict struct {
	// ask the server whether these owners exist, note the answers, and judge again.
	ask []ownerKey
	// release takes this object's references off these, then its orphan finalizer.
	release []*object
	letGo   bool
	// finish takes the foreground finalizer off: nothing blocks it any more.
	finish bool
	// wake these, which block the deletion.
	wake []types.UID
	// keep these owner references and drop the others.
	keep []metav1.OwnerReference
	trim bool
	// delete it with that policy, unblocking its own owners first if it is part of a cycle.
	policy  metav1.DeletionPropagation
	unblock bool
}

// writes tells whether the server is to be asked for something.
func (v verdict) writes() bool { return v.letGo || v.finish || v.trim || v.policy != "" }

// judge decides about an object. Known are owners that the server, asked for this very judgement, said exist.
//
// An owner is solid when it exists and does not wait for its dependents; then the object stays, and references to others
// that are gone or waiting are dropped. Without a solid owner, the object is deleted: in the foreground if an owner
// waits for it and it has dependents itself, else as its own finalizers say, else in the background.
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

// means tells whether a reference means that object: kind and name are right, and it is not in another namespace.
func (g *graph) means(key ownerKey, owner *object) bool {
	return key.group == owner.resource.Group && key.kind == owner.kind && key.name == owner.name &&
		(owner.namespace == "" || owner.namespace == key.namespace)
}

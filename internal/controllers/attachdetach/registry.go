// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// attachment is what the controller remembers of a volume on a node. Only the worker that syncs the volume uses its fields.
type attachment struct {
	name      string // of the VolumeAttachment
	confirmed bool   // the volume is attached, and pods have an event of it
	conflict  bool   // pods have an event that another node has the volume

	pods map[types.UID]podName // the pods that use the volume here
	told map[types.UID]string  // the last failure of which each pod has an event

	created types.UID // the VolumeAttachment that this controller created or may have created, until the cache shows it
	deleted types.UID // the VolumeAttachment that this controller deleted

	attaching time.Time // when the current wait for the attacher began; zero: nothing waits
	detaching time.Time // the same for its deletion
	idle      time.Time // since when no pod uses the volume here; zero: a pod does
	retry     backoff
}

type podName struct{ namespace, name string }

// backoff is the time between tries to create a VolumeAttachment: from half a second, doubled to about two minutes.
type backoff struct {
	last time.Duration
	next time.Time
}

const (
	firstRetry = 500 * time.Millisecond
	lastRetry  = 2*time.Minute + 2*time.Second
)

// failed returns the time until the next try.
func (b *backoff) failed(now time.Time) time.Duration {
	b.last = min(max(2*b.last, firstRetry), lastRetry)
	b.next = now.Add(b.last)
	return b.last
}

// registry holds the attachments by volume and node.
type registry struct {
	mu     sync.Mutex
	of     map[string]map[string]*attachment // by volume and node
	owners map[string]string                 // volumes by the name of a VolumeAttachment
	nodes  map[string]map[string]bool        // volumes by node
	users  map[types.UID]map[string]int      // volumes by pod, with the number of nodes
}

func newRegistry() *registry {
	return &registry{of: map[string]map[string]*attachment{}, owners: map[string]string{}, nodes: map[string]map[string]bool{},
		users: map[types.UID]map[string]int{}}
}

// track returns the attachment of a volume on a node, and adds it if it is missing.
func (r *registry) track(volume, node string) *attachment {
	r.mu.Lock()
	defer r.mu.Unlock()
	if a := r.of[volume][node]; a != nil {
		return a
	}
	a := &attachment{name: attachmentName(volume, node), pods: map[types.UID]podName{}, told: map[types.UID]string{}}
	if r.of[volume] == nil {
		r.of[volume] = map[string]*attachment{}
	}
	if r.nodes[node] == nil {
		r.nodes[node] = map[string]bool{}
	}
	r.of[volume][node], r.nodes[node][volume], r.owners[a.name] = a, true, volume
	return a
}

// forget removes the attachment of a volume on a node.
func (r *registry) forget(volume, node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a := r.of[volume][node]
	if a == nil {
		return
	}
	for pod := range a.pods {
		r.leave(volume, pod)
	}
	delete(r.owners, a.name)
	if delete(r.of[volume], node); len(r.of[volume]) == 0 {
		delete(r.of, volume)
	}
	if delete(r.nodes[node], volume); len(r.nodes[node]) == 0 {
		delete(r.nodes, node)
	}
}

// use records the pods that use a volume on a node.
func (r *registry) use(volume string, a *attachment, pods map[types.UID]podName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for pod := range a.pods {
		if _, ok := pods[pod]; !ok {
			r.leave(volume, pod)
			delete(a.told, pod)
		}
	}
	for pod := range pods {
		if _, ok := a.pods[pod]; !ok {
			if r.users[pod] == nil {
				r.users[pod] = map[string]int{}
			}
			r.users[pod][volume]++
		}
	}
	a.pods = pods
}

func (r *registry) leave(volume string, pod types.UID) {
	if r.users[pod][volume]--; r.users[pod][volume] <= 0 {
		delete(r.users[pod], volume)
	}
	if len(r.users[pod]) == 0 {
		delete(r.users, pod)
	}
}

// attachmentsOf returns a copy of the attachments of a volume, by node.
func (r *registry) attachmentsOf(volume string) map[string]*attachment {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.of[volume])
}

// ofAttachment returns the volume of a VolumeAttachment; empty if it is unknown.
func (r *registry) ofAttachment(name string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.owners[name]
}

// ofPod returns the volumes that a pod uses.
func (r *registry) ofPod(pod types.UID) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.users[pod]))
}

// onNode returns the volumes on a node.
func (r *registry) onNode(node string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.nodes[node]))
}

// names returns all volumes.
func (r *registry) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.of))
}

// counts calls f with each volume, the number of nodes that it is tracked on, and the number of those whose pods use it.
func (r *registry) counts(f func(volume string, tracked, wanted int)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for volume, on := range r.of {
		wanted := 0
		for _, a := range on {
			if len(a.pods) > 0 {
				wanted++
			}
		}
		f(volume, len(on), wanted)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
)

// listing is how a node's status lists a volume as attached.
type listing int

const (
	unlisted  listing = iota // it does not, and the controller has not checked whether the node uses the volume
	listed                   // it does, or will after the next sync of the node
	withdrawn                // the next sync of the node removes the volume and checks that the node does not use it
	forced                   // the next sync of the node removes the volume, whether or not the node uses it
	released                 // it does not since a write that showed that the node does not use the volume
)

// ledger holds which volumes nodes' statuses list as attached. Volumes' workers write it, and nodes' workers carry it out.
type ledger struct {
	mu   sync.Mutex
	of   map[string]map[string]listing
	gone map[string]sets.Set[corev1.UniqueVolumeName] // what nodes that no longer exist used last
}

func newLedger() *ledger {
	return &ledger{of: map[string]map[string]listing{}, gone: map[string]sets.Set[corev1.UniqueVolumeName]{}}
}

// state returns how a node lists a volume.
func (l *ledger) state(node, volume string) listing {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[node][volume]
}

// list makes a node list a volume.
func (l *ledger) list(node, volume string) { l.set(node, volume, listed) }

// set changes how a node lists a volume.
func (l *ledger) set(node, volume string, to listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.put(node, volume, to)
}

func (l *ledger) put(node, volume string, to listing) {
	if l.of[node] == nil {
		l.of[node] = map[string]listing{}
	}
	if l.of[node][volume] = to; to == unlisted {
		delete(l.of[node], volume)
	}
	if len(l.of[node]) == 0 {
		delete(l.of, node)
	}
}

// page returns the volumes that belong in the node's status, sorted, and those that the next write removes from it.
func (l *ledger) page(node string) (attached []string, leaving map[string]listing) {
	l.mu.Lock()
	defer l.mu.Unlock()
	leaving = map[string]listing{}
	for volume, state := range l.of[node] {
		switch state {
		case listed:
			attached = append(attached, volume)
		case withdrawn, forced:
			leaving[volume] = state
		}
	}
	slices.Sort(attached)
	return attached, leaving
}

// settle records that a node's status lists the leaving volumes no longer, and what the node used at that time. It returns the volumes that
// the node still used. A volume whose state has changed meanwhile keeps it.
func (l *ledger) settle(node string, leaving map[string]listing, inUse []corev1.UniqueVolumeName) (used []string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, volume := range slices.Sorted(maps.Keys(leaving)) {
		switch l.of[node][volume] {
		case withdrawn:
			if slices.Contains(inUse, corev1.UniqueVolumeName(volume)) {
				l.put(node, volume, unlisted)
				used = append(used, volume)
				continue
			}
			l.put(node, volume, released)
		case forced:
			l.put(node, volume, released)
		}
	}
	return used
}

// left records that a node does not exist any more, and what it used last.
func (l *ledger) left(node string, inUse []corev1.UniqueVolumeName) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone[node] = sets.New(inUse...)
}

// returned forgets what a node used: it exists, or has no volumes any more.
func (l *ledger) returned(node string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.gone, node)
}

// usedLast reports whether a node that does not exist used a volume last. It did as far as the controller does not know.
func (l *ledger) usedLast(node, volume string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	last, known := l.gone[node]
	return !known || last.Has(corev1.UniqueVolumeName(volume))
}

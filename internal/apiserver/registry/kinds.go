// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"maps"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// Kinds is the table of the kinds that are served. It is replaced as a whole, so that readers take no lock.
type Kinds struct {
	store    *store.Store
	views    *watchcache.Views
	bulky    *watchcache.Views // of kinds whose codecs say how large their objects are: few are kept
	lifetime *watchcache.Lifetime
	unread   func(r schema.GroupResource, e *store.UnreadableError, first bool) // nil: there is none

	mu    sync.Mutex // held while the table changes
	table atomic.Pointer[kindTable]
}

type kindTable struct {
	byGroup map[string]map[string]*Kind // group → resource
	owned   map[string]bool             // the groups that are this table's own, while it is made
}

func newKinds(s *store.Store, lifetime *watchcache.Lifetime, viewBytes int64) *Kinds {
	k := &Kinds{store: s, views: watchcache.NewViews(viewBytes), bulky: watchcache.NewViews(viewBytes / 8), lifetime: lifetime}
	k.table.Store(&kindTable{byGroup: map[string]map[string]*Kind{}})
	return k
}

// Add puts descriptors to work; one of a resource that is served already replaces it.
func (ks *Kinds) Add(ds ...*resource.Descriptor) {
	if len(ds) == 0 {
		return
	}
	ks.edit(func(t *kindTable) {
		for _, d := range ds {
			views := ks.views
			if _, sized := d.Codec.(resource.SizeCodec); sized {
				views = ks.bulky
			}
			k := watchcache.NewKind(d, ks.store, views, ks.lifetime)
			k.Foreign = ks.foreign()
			if ks.unread != nil {
				k.Unread = func(e *store.UnreadableError, first bool) { ks.unread(d.GroupResource(), e, first) }
			}
			if old := t.byGroup[d.Group][d.Resource]; old != nil {
				old.Feed.Stop() // its watchers come again, and are served by the new one
			}
			t.own(d.Group)[d.Resource] = k
		}
	})
}

// foreign returns the last revision that another process may have written. On a store of its own, this process writes all revisions after
// its start. On a shared store, another API server may write any revision.
func (ks *Kinds) foreign() int64 {
	if _, shared := store.Ability[store.Compactor](ks.store.Engine()); shared {
		return math.MaxInt64
	}
	return ks.store.Revision()
}

// Remove stops serving resources.
func (ks *Kinds) Remove(rs ...schema.GroupResource) {
	if len(rs) == 0 {
		return
	}
	ks.edit(func(t *kindTable) {
		for _, r := range rs {
			if k := t.byGroup[r.Group][r.Resource]; k != nil {
				delete(t.own(r.Group), r.Resource)
				k.Feed.Stop()
			}
			if len(t.byGroup[r.Group]) == 0 {
				delete(t.byGroup, r.Group)
			}
		}
	})
}

func (ks *Kinds) edit(change func(*kindTable)) {
	ks.mu.Lock()
	defer ks.mu.Unlock()
	old := ks.table.Load()
	t := &kindTable{byGroup: maps.Clone(old.byGroup), owned: map[string]bool{}}
	change(t)
	t.owned = nil
	ks.table.Store(t)
}

// own is a group's kinds while the table is being changed: a copy, since readers have the one that was before.
func (t *kindTable) own(group string) map[string]*Kind {
	if !t.owned[group] || t.byGroup[group] == nil {
		t.owned[group] = true
		m := maps.Clone(t.byGroup[group])
		if m == nil {
			m = map[string]*Kind{}
		}
		t.byGroup[group] = m
	}
	return t.byGroup[group]
}

// Descriptors are all descriptors that are served, in no order.
func (ks *Kinds) Descriptors() []*resource.Descriptor {
	var ds []*resource.Descriptor
	for _, rs := range ks.table.Load().byGroup {
		for _, k := range rs {
			ds = append(ds, k.Descriptor)
		}
	}
	return ds
}

// Get is the kind of a resource, nil if it is not served.
func (ks *Kinds) Get(r schema.GroupResource) *Kind {
	return ks.table.Load().byGroup[r.Group][r.Resource]
}

// Group is the kinds of a group by resource, shared and read-only.
func (ks *Kinds) Group(group string) map[string]*Kind { return ks.table.Load().byGroup[group] }

// HasGroup is true when some resource of the group is served.
func (ks *Kinds) HasGroup(group string) bool { return len(ks.Group(group)) > 0 }

// at returns the served kind whose objects have keys such as this one, nil if there is none.
func (ks *Kinds) at(key string) *Kind {
	var found *Kind
	for _, group := range ks.table.Load().byGroup {
		for _, k := range group {
			if strings.HasPrefix(key, k.Root) && (found == nil || len(k.Root) > len(found.Root)) {
				found = k
			}
		}
	}
	return found
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"fmt"
	"log/slog"
	"sync"
	"weak"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/internal/apiserver/ondemand"
	"github.com/mortise-dev/mortise/resource"
)

// Manager maintains managedFields. The zero value is not usable; see [New].
type Manager struct {
	log   *slog.Logger
	types *types
	scale func() (*managedfields.FieldManager, error)

	mu sync.RWMutex
	// kinds has what was built for each descriptor, under a weak pointer: the descriptor of a deleted definition is
	// freed.
	kinds map[weak.Pointer[resource.Descriptor]]*ondemand.Value[*kind]
	// custom bounds the memory of the kinds of definitions.
	custom *ondemand.Pool
	alike  alike
	met    alike // likenesses of updated objects that were met once
}

// customBytes bounds the memory for all kinds of definitions; each kind takes a multiple of its schema's size.
const (
	customBytes = 8 << 20
	customTimes = 8
)

// kind is what was built for a descriptor.
type kind struct {
	descriptor weak.Pointer[resource.Descriptor]
	mu         sync.RWMutex
	converters map[string]managedfields.TypeConverter // by version
	managers   map[managerKey]*managedfields.FieldManager
	creations  map[string]*creation // by version; nil: field sets are computed each time
}

type managerKey struct{ version, subresource string }

// New returns a manager. It logs failures to track the fields of an update; they never fail the update.
func New(log *slog.Logger) *Manager {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Manager{log: log, types: libraryTypes(), scale: sync.OnceValues(newScale),
		kinds: map[weak.Pointer[resource.Descriptor]]*ondemand.Value[*kind]{}, custom: ondemand.NewPool(customBytes)}
}

// Warm builds what the built-in kinds need, so that the first write does not wait for it.
func (m *Manager) Warm() error {
	_, err := m.types.builtIn()
	return err
}

// Update records which fields of obj manager changed, compared with live, which is nil when obj is created. Both are
// hub objects; obj is changed and returned. If tracking fails, obj keeps live's entries. An object that has too many
// fields, or had too many before, gets no entries, as if it were too large to be stored with them.
func (m *Manager) Update(d *resource.Descriptor, version, subresource string, live, obj resource.Object, manager string) (resource.Object,
	error) {
	if crowded(obj) || live != nil && crowded(live) {
		obj.SetManagedFields(nil)
		return obj, nil
	}
	var was []metav1.ManagedFieldsEntry
	if live != nil {
		was = live.GetManagedFields()
	}
	if err := m.update(d, version, subresource, live, obj, manager); err != nil {
		// Most often the object is invalid too, and the client gets that error.
		m.log.Debug("Could not update managed fields", "kind", d.Kind, "group", d.Group, "name", obj.GetName(), "error", err)
		obj.SetManagedFields(was)
		return obj, nil
	}
	return obj, nil
}

func (m *Manager) update(d *resource.Descriptor, version, subresource string, live, obj resource.Object, manager string) error {
	f, c, err := m.of(d, version, subresource)
	if err != nil {
		return err
	}
	if live == nil && subresource == "" {
		return m.create(f, c, obj, manager)
	}
	if live != nil && subresource == "" {
		if done, err := m.updateSole(f, c, live, obj, manager); done || err != nil {
			return err
		}
	}
	before, err := c.live(live)
	if err != nil {
		return err
	}
	_, err = f.Update(before, obj, manager)
	return err
}

// Configuration is the object that a field manager applies. Force takes fields over from other managers.
type Configuration struct {
	Object  *unstructured.Unstructured
	Manager string
	Force   bool
}

// Apply merges a configuration into live, which is nil if the object is created, and returns a new object: a hub
// object, or one of the version if that is deferred. A conflict is an API status error: 409 with a cause for each
// field. A configuration or object with too many fields is rejected.
func (m *Manager) Apply(d *resource.Descriptor, version, subresource string, live resource.Object, c Configuration) (resource.Object,
	error) {
	if crowded(c.Object) || live != nil && crowded(live) {
		return nil, apierrors.NewRequestEntityTooLargeError(
			fmt.Sprintf("The allowed maximum members of a map or list in an object that is applied is %d", maxMembers))
	}
	f, convert, err := m.of(d, version, subresource)
	if err != nil {
		return nil, err
	}
	known, err := m.knownApply(convert, subresource, live, c)
	if err != nil {
		return nil, err
	}
	if obj := known.apply(); obj != nil {
		return obj, nil
	}
	before, err := convert.live(live)
	if err != nil {
		return nil, err
	}
	merged, err := f.Apply(before, c.Object.DeepCopy(), c.Manager, c.Force)
	if err != nil {
		return nil, err
	}
	obj, err := convert.hub(merged)
	if err == nil {
		known.learn(obj)
	}
	return obj, err
}

// of returns the field manager of a subresource and its converter.
func (m *Manager) of(d *resource.Descriptor, version, subresource string) (*managedfields.FieldManager, *converter, error) {
	v := d.Version(version)
	if v == nil {
		return nil, nil, fmt.Errorf("keep managed fields: %s has no version %s", d.Resource, version)
	}
	c := &converter{d: d, v: v}
	k := m.kind(d)
	at := managerKey{version, subresource}
	k.mu.RLock()
	f := k.managers[at]
	k.mu.RUnlock()
	if f != nil {
		return f, c, nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if f := k.managers[at]; f != nil {
		return f, c, nil
	}
	types, ok := k.converters[version]
	if !ok {
		var err error
		if types, err = m.types.of(d); err != nil {
			return nil, nil, err
		}
		k.converters[version] = types
	}
	weakly := weakConverter{k.descriptor, version}
	make := managedfields.NewDefaultFieldManager
	if custom(d) {
		make = managedfields.NewDefaultCRDFieldManager
	}
	gvk := d.GroupVersionKind(version)
	hub := schema.GroupVersion{Group: d.Group, Version: d.Storage}
	if v.Deferred { // the result stays in the version of the apply
		hub.Version = version
	}
	f, err := make(types, weakly, weakly, weakly, gvk, hub, subresource, resets(d, subresource))
	if err != nil {
		return nil, nil, fmt.Errorf("make field manager: %w", err)
	}
	k.managers[at] = f
	return f, c, nil
}

func (m *Manager) kind(d *resource.Descriptor) *kind {
	p := weak.Make(d)
	m.mu.RLock()
	v := m.kinds[p]
	m.mu.RUnlock()
	if v == nil {
		v = m.newKind(p, d)
	}
	k, _ := v.Get() // an empty value cannot fail
	return k
}

func (m *Manager) newKind(p weak.Pointer[resource.Descriptor], d *resource.Descriptor) *ondemand.Value[*kind] {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v := m.kinds[p]; v != nil {
		return v
	}
	for old := range m.kinds {
		if old.Value() == nil {
			delete(m.kinds, old)
		}
	}
	var pool *ondemand.Pool
	if custom(d) {
		pool = m.custom
	}
	v := ondemand.New(pool, customTimes*crd.SchemaBytes(d)+4<<10, func() (*kind, error) {
		return &kind{descriptor: p, converters: map[string]managedfields.TypeConverter{}, managers: map[managerKey]*managedfields.FieldManager{},
			creations: map[string]*creation{}}, nil
	})
	m.kinds[p] = v
	return v
}

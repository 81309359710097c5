// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// Options of a [Registry]. The zero value is useful.
type Options struct {
	// BuiltIn reports whether the resource is built in or aggregated; such a definition is stored but not served.
	BuiltIn func(schema.GroupResource) bool
	// Changed is called after each change of [Registry.Descriptors], with the added and the removed descriptors. A
	// changed kind is in both. Calls are serialized, in the order of the changes.
	Changed func(added, removed []*resource.Descriptor)
	// Caller calls conversion webhooks; nil: definitions with a webhook cannot convert.
	Caller Caller
	// CompiledBytes limits the memory of all compiled schemas together; 0: 24 MiB.
	CompiledBytes int64
	// Logger logs errors outside of requests.
	Logger *slog.Logger
	// Now returns the time of conditions; nil: time.Now.
	Now func() time.Time
}

// Registry holds the served definitions. The server's feed calls [Registry.Apply] for each change of a definition. The
// server reads the resulting descriptors.
//
// A definition with accepted names is served as soon as Apply returns: a custom resource can be created as soon as the
// create of its definition has been answered.
type Registry struct {
	opts    Options
	schemas *schemas

	mu      sync.Mutex // guards the following fields
	defs    map[string]*defined
	groups  map[string]map[string]*defined // group → name
	arrived []string                       // the names in defs, in order of arrival
	current atomic.Pointer[[]*resource.Descriptor]

	cleaning chan struct{} // holds a token when definitions may need cleanup
	pending  map[string]bool

	unwritten map[string]bool // names of definitions whose status is to be written
}

// defined is a definition without its schemas, with its descriptor, which is nil as long as it has no names.
type defined struct {
	def        *v1.CustomResourceDefinition
	descriptor *resource.Descriptor
}

// NewRegistry returns a registry without definitions.
func NewRegistry(o Options) *Registry {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.BuiltIn == nil {
		o.BuiltIn = func(schema.GroupResource) bool { return false }
	}
	return &Registry{opts: o, schemas: newSchemas(o.CompiledBytes), defs: map[string]*defined{}, groups: map[string]map[string]*defined{},
		cleaning: make(chan struct{}, 1), pending: map[string]bool{}, unwritten: map[string]bool{}}
}

// Descriptors returns the descriptors of all served definitions, in order of arrival. The slice is shared, and replaced
// on change.
func (r *Registry) Descriptors() []*resource.Descriptor {
	if p := r.current.Load(); p != nil {
		return *p
	}
	return nil
}

// Served returns the served definitions in order of arrival, without their schemas. They are read-only.
func (r *Registry) Served() []*v1.CustomResourceDefinition {
	r.mu.Lock()
	defer r.mu.Unlock()
	var out []*v1.CustomResourceDefinition
	for _, name := range r.arrived {
		if d := r.defs[name]; d.descriptor != nil {
			out = append(out, d.def)
		}
	}
	return out
}

// names returns the names of all known definitions, served or not.
func (r *Registry) names() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.arrived)
}

// Load serves the definitions of a snapshot, and no others. A definition that cannot be served does not affect the
// others; the feed applies it again.
func (r *Registry) Load(ctx context.Context, b resource.Backend, s *feed.Snapshot) error {
	stored, err := s.List(ctx, Resource, "")
	if err != nil {
		return err
	}
	r.reserve(stored)
	names := make(map[string]bool, len(stored))
	for _, obj := range stored {
		names[obj.GetName()] = true
	}
	var errs []error
	for _, name := range r.names() {
		if !names[name] && !s.Has(Resource, "", name) {
			errs = append(errs, r.Apply(ctx, b, &feed.Change{Name: name}))
		}
	}
	for _, obj := range stored {
		if err := r.Apply(ctx, b, &feed.Change{Name: obj.GetName(), Object: obj}); err != nil {
			r.opts.Logger.ErrorContext(ctx, "Could not serve a stored CustomResourceDefinition", "name", obj.GetName(), "error", err)
			s.Fail(Resource, obj, err)
		}
	}
	return errors.Join(errs...)
}

// reserve takes note of the names that stored definitions have accepted. Without it a definition that is applied before another one
// would be given a name that the other one has.
func (r *Registry) reserve(stored []resource.Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, obj := range stored {
		if def, ok := obj.(*v1.CustomResourceDefinition); ok {
			r.group(def.Spec.Group)[def.Name] = &defined{def: slim(def)}
		}
	}
}

// group returns the definitions of a group by their names. The caller holds mu.
func (r *Registry) group(name string) map[string]*defined {
	if r.groups[name] == nil {
		r.groups[name] = map[string]*defined{}
	}
	return r.groups[name]
}

// Apply applies a change of a definition. It writes the status that follows, of this definition and of others that wait for its
// names, through b, which must not hold a lock here. A status that could not be written is written by the next call, whatever that
// is about.
func (r *Registry) Apply(ctx context.Context, b resource.Backend, c *feed.Change) error {
	def, _ := c.Object.(*v1.CustomResourceDefinition)
	names, err := r.note(c.Name, def)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range r.pendingStatus(names) {
		if err := r.writeStatus(ctx, b, name); err != nil {
			r.mu.Lock()
			r.unwritten[name] = true
			r.mu.Unlock()
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// pendingStatus returns the names of the definitions whose status is to be written: those given, and those of earlier calls that failed.
func (r *Registry) pendingStatus(names []string) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name := range r.unwritten {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	clear(r.unwritten)
	return names
}

// note changes the registry, and returns the names of the definitions whose status is to be written.
func (r *Registry) note(name string, def *v1.CustomResourceDefinition) ([]string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	old := r.defs[name]
	if def == nil {
		_, group, _ := strings.Cut(name, ".")
		delete(r.groups[group], name)
		if len(r.groups[group]) == 0 {
			delete(r.groups, group)
		}
		if old == nil {
			return r.reconsider(group), nil
		}
		r.list(name, nil)
		delete(r.defs, name)
		delete(r.pending, name)
		r.arrived = slices.DeleteFunc(r.arrived, func(n string) bool { return n == name })
		r.publish(nil, old.descriptor)
		return r.reconsider(group), nil
	}
	now := r.opts.Now()
	is := accept(def, r.others(def), now)
	full := withStatus(def, is)
	entry := &defined{def: slim(full)}
	named := apihelpers.IsCRDConditionTrue(entry.def, v1.NamesAccepted) || established(entry.def)
	gr := schema.GroupResource{Group: def.Spec.Group, Resource: is.AcceptedNames.Plural}
	if named && !r.opts.BuiltIn(gr) {
		if old != nil && old.descriptor != nil && sameKind(old.def, entry.def) {
			entry.descriptor = old.descriptor // only the status or labels changed: no need to compile
		} else {
			d, err := compileWith(full, r.opts.Caller, r.schemas)
			if err != nil {
				return nil, err
			}
			if terminating(entry.def) {
				r.watchDeletes(d, name)
			}
			entry.descriptor = d
		}
	}
	r.defs[name] = entry
	r.list(name, def)
	r.group(def.Spec.Group)[name] = entry
	if old == nil {
		r.arrived = append(r.arrived, name)
	}
	var before *resource.Descriptor
	if old != nil {
		before = old.descriptor
	}
	r.publish(entry.descriptor, before)
	if !def.DeletionTimestamp.IsZero() && slices.Contains(def.Finalizers, v1.CustomResourceCleanupFinalizer) {
		r.clean(name)
	}
	var work []string
	if !sameStatus(def.Status, is) {
		work = append(work, name)
	}
	if old != nil && !slices.Equal(allNames(old.def), allNames(entry.def)) {
		work = append(work, r.reconsider(def.Spec.Group)...)
	}
	return work, nil
}

// others returns the names of the group that other definitions have.
func (r *Registry) others(def *v1.CustomResourceDefinition) taken {
	t := taken{resources: map[string]bool{}, kinds: map[string]bool{}}
	for name, d := range r.groups[def.Spec.Group] {
		if name != def.Name {
			t.add(d.def.Status.AcceptedNames)
		}
	}
	return t
}

// reconsider finds the definitions of a group that may have names which were refused before.
func (r *Registry) reconsider(group string) []string {
	var work []string
	for _, name := range r.arrived {
		d := r.groups[group][name]
		if d == nil || apihelpers.IsCRDConditionTrue(d.def, v1.NamesAccepted) {
			continue
		}
		if is := accept(d.def, r.others(d.def), r.opts.Now()); !sameStatus(is, d.def.Status) {
			work = append(work, name)
		}
	}
	return work
}

// publish replaces the list of descriptors. It calls Changed under the lock, so that the server sees changes in order.
func (r *Registry) publish(added, removed *resource.Descriptor) {
	if added == removed {
		return
	}
	list := r.listed(added, removed)
	r.current.Store(&list)
	if r.opts.Changed != nil {
		one := func(d *resource.Descriptor) []*resource.Descriptor {
			if d == nil {
				return nil
			}
			return []*resource.Descriptor{d}
		}
		r.opts.Changed(one(added), one(removed))
	}
}

// listed returns the list of descriptors with one change. The most frequent changes do not iterate over all
// definitions.
func (r *Registry) listed(added, removed *resource.Descriptor) []*resource.Descriptor {
	old := r.Descriptors()
	i := -1
	if removed != nil {
		i = slices.Index(old, removed)
	}
	switch {
	case added == nil:
		return slices.DeleteFunc(slices.Clone(old), func(d *resource.Descriptor) bool { return d == removed })
	case i >= 0:
		list := slices.Clone(old)
		list[i] = added
		return list
	case r.defs[r.arrived[len(r.arrived)-1]].descriptor == added:
		return append(slices.Clip(old), added)
	}
	list := []*resource.Descriptor{} // a definition that waited for its names
	for _, name := range r.arrived {
		if d := r.defs[name]; d.descriptor != nil {
			list = append(list, d.descriptor)
		}
	}
	return list
}

func (r *Registry) writeStatus(ctx context.Context, b resource.Backend, name string) error {
	_, err := b.Update(ctx, Resource, "", name, false, func(obj resource.Object) error {
		d := obj.(*v1.CustomResourceDefinition)
		r.mu.Lock()
		is := accept(d, r.others(d), r.opts.Now())
		r.mu.Unlock()
		if sameStatus(d.Status, is) {
			return nil
		}
		d.Status = is
		return own(d, r.opts.Now())
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write status of %s: %w", name, err)
	}
	return nil
}

func withStatus(def *v1.CustomResourceDefinition, is v1.CustomResourceDefinitionStatus) *v1.CustomResourceDefinition {
	out := *def
	out.Status = is
	return &out
}

// slim returns a definition without its large parts, which the stored bytes have anyway: schemas, columns, managed fields, and all
// annotations but the approval of a protected group.
func slim(def *v1.CustomResourceDefinition) *v1.CustomResourceDefinition {
	out := *def
	out.Spec.Versions = slices.Clone(def.Spec.Versions)
	for i := range out.Spec.Versions {
		v := &out.Spec.Versions[i]
		v.Schema, v.AdditionalPrinterColumns = nil, nil
	}
	out.ManagedFields, out.Annotations = nil, nil
	if a, ok := def.Annotations[v1.KubeAPIApprovedAnnotation]; ok {
		out.Annotations = map[string]string{v1.KubeAPIApprovedAnnotation: a}
	}
	return &out
}

// sameKind reports whether two states of a definition compile to the same descriptor.
func sameKind(a, b *v1.CustomResourceDefinition) bool {
	return a.UID == b.UID && a.Generation == b.Generation && terminating(a) == terminating(b) && established(a) == established(b) &&
		apihelpers.IsCRDConditionTrue(a, v1.Terminating) == apihelpers.IsCRDConditionTrue(b, v1.Terminating) &&
		slices.Equal(allNames(a), allNames(b)) && slices.Equal(a.Status.AcceptedNames.Categories, b.Status.AcceptedNames.Categories)
}

// established reports whether the world is to know of a definition's kind.
func established(def *v1.CustomResourceDefinition) bool {
	return apihelpers.IsCRDConditionTrue(def, v1.Established)
}

func allNames(def *v1.CustomResourceDefinition) []string {
	n := def.Status.AcceptedNames
	return append([]string{n.Plural, n.Singular, n.Kind, n.ListKind}, n.ShortNames...)
}

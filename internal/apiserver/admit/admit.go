// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package admit decides whether a write may be, and changes it on its way: the admission stage between decoding and the
// kind's strategy.
//
// A [Plugin] is one built-in admission plug-in, one package each below this one. The order is the order of the [Chain]
// that internal/builtin makes, upstream's own. Mutating plug-ins all run before the strategy, validating ones after it.
// Plug-ins are called concurrently by many requests and keep no state of a request.
package admit

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/resource"
)

// Operation is the operation of a request.
type Operation string

// The operations, as admission.k8s.io names them.
const (
	Create  Operation = "CREATE"
	Update  Operation = "UPDATE"
	Delete  Operation = "DELETE"
	Connect Operation = "CONNECT"
)

// Attributes describe a request for plug-ins.
type Attributes struct {
	Operation   Operation
	Descriptor  *resource.Descriptor
	Version     string // of the request
	Subresource string
	Namespace   string
	Name        string          // empty while generateName is not resolved
	Object      resource.Object // hub form; mutators may change it; nil on delete. For view and create subresources it is theirs
	Old         resource.Object // hub form, shared; nil on create
	Options     runtime.Object  // *metav1.CreateOptions …; the connect options on connect
	User        user.Info
	DryRun      bool

	// Warn adds a warning to the answer, Annotate an audit annotation. Never nil.
	Warn     func(text string)
	Annotate func(key, value string)

	// Round is 0 while the mutators are called for the first time, and 1 when a mutator had them all called again.
	Round  int
	again  bool
	memory map[string]any
	ends   []func(error)
}

// OnEnd has f called once when the write that a validator had nothing against has ended: with nil when it was committed, else
// with what became of it. A write that is tried again after a conflict is validated again, and ends each time.
func (a *Attributes) OnEnd(f func(error)) { a.ends = append(a.ends, f) }

// End reports the end of the write.
func (a *Attributes) End(err error) {
	ends := a.ends
	a.ends = nil
	for _, f := range ends {
		f(err)
	}
}

// CallAgain has all mutators called once more when they are through, since what came before did not see this change. They are
// called twice at most.
func (a *Attributes) CallAgain() { a.again = true }

// Again reports whether the mutators must run once more, and begins the second round if so.
func (a *Attributes) Again() bool {
	if !a.again || a.Round > 0 {
		return false
	}
	a.Round, a.again = 1, false
	return true
}

// Recall returns the value that a plug-in stored for the request under its name; nil: none.
func (a *Attributes) Recall(name string) any { return a.memory[name] }

// Remember keeps what a plug-in wants to know of the request in the second round, or in others of its phases.
func (a *Attributes) Remember(name string, what any) {
	if a.memory == nil {
		a.memory = map[string]any{}
	}
	a.memory[name] = what
}

// Kind is the kind that the request speaks: of a subresource its own, where it has one.
func (a *Attributes) Kind() schema.GroupVersionKind {
	if a.Subresource != "" {
		if s := a.Descriptor.Subresource(a.Subresource); s != nil && s.GroupVersionKind.Kind != "" {
			return s.GroupVersionKind
		}
	}
	return a.Descriptor.GroupVersionKind(a.Version)
}

// Resource is the resource of the request's path.
func (a *Attributes) Resource() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: a.Descriptor.Group, Version: a.Version, Resource: a.Descriptor.Resource}
}

// Plugin has a name and is a [Mutator], a [Validator], or both.
type Plugin interface {
	Name() string
}

// Mutator changes Attributes.Object, or refuses with an API status error.
type Mutator interface {
	Plugin
	Mutate(ctx context.Context, b resource.Backend, a *Attributes) error
}

// Validator refuses with an API status error, or has nothing against it.
type Validator interface {
	Plugin
	Validate(ctx context.Context, b resource.Backend, a *Attributes) error
}

// Chain is the plug-ins in their order.
type Chain []Plugin

// Mutate calls every mutator in order, all of them again if one asks for it; the first error ends it.
func (c Chain) Mutate(ctx context.Context, b resource.Backend, a *Attributes) error {
	for {
		for _, p := range c {
			if m, ok := p.(Mutator); ok {
				if err := m.Mutate(ctx, b, a); err != nil {
					return err
				}
			}
		}
		if !a.Again() {
			return nil
		}
	}
}

// Validate calls every validator in order; the first error ends it.
func (c Chain) Validate(ctx context.Context, b resource.Backend, a *Attributes) error {
	for _, p := range c {
		if v, ok := p.(Validator); ok {
			if err := v.Validate(ctx, b, a); err != nil {
				return err
			}
		}
	}
	return nil
}

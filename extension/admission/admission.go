// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package admission is the contract of admission plug-ins in Go: what they implement, and what they get.
//
// A [Plugin] is a [Mutator], a [Validator], or both. Mutating plug-ins all run before the kind's strategy, validating ones after it. Many
// requests call a plug-in at the same time; it keeps no state of a request. A plug-in that has a part in the AdmissionConfiguration is
// [Configured], one that asks its server is [Hosted]. embed.Extensions takes plug-ins.
//
// # Stability
//
// What this package exports only grows: a committed list of it is compared in a test, and a change that breaks a plug-in is announced in a
// release before.
package admission

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

	// Round is 0 during the first calls of the mutators. It is 1 when one mutator requested that all be called again.
	Round  int
	again  bool
	memory map[string]any
	ends   []func(error)
}

// OnEnd registers f, which is called once when an admitted write has ended: with nil if it was committed, otherwise
// with its error. A write that is retried after a conflict is validated again, and ends each time.
func (a *Attributes) OnEnd(f func(error)) { a.ends = append(a.ends, f) }

// End reports the end of the write.
func (a *Attributes) End(err error) {
	ends := a.ends
	a.ends = nil
	for _, f := range ends {
		f(err)
	}
}

// CallAgain requests one more call of all mutators after they have all run, because earlier ones did not see this
// change. They are called at most twice.
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

// Remember stores a value for the plug-in's later calls for the same request: those of the second round, or of another
// phase.
func (a *Attributes) Remember(name string, what any) {
	if a.memory == nil {
		a.memory = map[string]any{}
	}
	a.memory[name] = what
}

// Kind is the request's kind. For a subresource it is the subresource's own kind, if it has one.
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

// Is reports whether the request is for the named resource or subresource; "" means the resource itself.
func (a *Attributes) Is(group, name, subresource string) bool {
	return a.Descriptor.Group == group && a.Descriptor.Resource == name && a.Subresource == subresource
}

// Plugin has a name and is a [Mutator], a [Validator], or both.
type Plugin interface {
	Name() string
}

// Filter is a [Plugin] that handles only some requests. On the others it has nothing to say: it would neither change nor reject them, nor
// warn, nor annotate. The API server then does not call it, does not measure it, and does not compare the object before and after it.
// Handles is called for each request, before each of the plug-in's other methods: it waits for nothing and changes nothing.
type Filter interface {
	Plugin
	Handles(a *Attributes) bool
}

// Mutator changes Attributes.Object, or refuses with an API status error.
type Mutator interface {
	Plugin
	Mutate(ctx context.Context, b resource.Backend, a *Attributes) error
}

// Validator rejects a request with an API status error, or returns nil.
type Validator interface {
	Plugin
	Validate(ctx context.Context, b resource.Backend, a *Attributes) error
}

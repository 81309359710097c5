// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/mortise-dev/mortise/extension"
)

// lister is a [Caller] that gets the list of webhooks before it calls them.
type lister interface {
	Register(ref extension.Ref, where string)
	Unregister(ref extension.Ref)
}

// list registers the conversion webhook of a definition in the ledger, or removes it; nil: the definition was deleted.
func (r *Registry) list(name string, def *v1.CustomResourceDefinition) {
	l, ok := r.opts.Caller.(lister)
	if !ok {
		return
	}
	ref := extension.Ref{Point: extension.ConversionWebhook, Name: name}
	if def != nil && def.Spec.Conversion != nil && def.Spec.Conversion.Strategy == v1.WebhookConverter {
		l.Register(ref, "CustomResourceDefinition/"+name)
	} else {
		l.Unregister(ref)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"fmt"
	"sync/atomic"

	"github.com/mortise-dev/mortise/internal/apiserver/feed"
)

// Readiness is embedded by followers that enforce what stored objects say. It has the objects that cannot be read from the store. The
// plug-in does not know what they would have it refuse, and refuses all: with kube-apiserver an object that cannot be decoded keeps the
// plug-in's informer from syncing, and the plug-in refuses all requests until it has.
type Readiness struct {
	objects atomic.Pointer[[]feed.Key] // nil: none
}

// SetUnreadable stores the objects that cannot be read.
func (r *Readiness) SetUnreadable(objects []feed.Key) {
	if len(objects) == 0 {
		r.objects.Store(nil)
		return
	}
	r.objects.Store(&objects)
}

// Refuse returns an error while an object cannot be read that may be about the request. Requests for resources of that kind, and for
// those that configure admission, pass, so that the object can be deleted or replaced. So do reviews of users, which no plug-in refuses.
func (r *Readiness) Refuse(a *Attributes) error {
	objects := r.objects.Load()
	if objects == nil {
		return nil
	}
	switch a.Descriptor.Group {
	case "admissionregistration.k8s.io", "authentication.k8s.io", "authorization.k8s.io":
		return nil
	}
	for _, o := range *objects {
		if o.Resource == a.Descriptor.GroupResource() {
			return nil
		}
	}
	for _, o := range *objects {
		if o.Namespace == "" || o.Namespace == a.Namespace {
			return Forbidden(a, fmt.Errorf("not yet ready to handle request: %s cannot be read from the store", o)) // upstream's words, and why
		}
	}
	return nil
}

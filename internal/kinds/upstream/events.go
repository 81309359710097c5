// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"

	"github.com/mortise-dev/mortise/resource"
)

// Event validates events by the rules of the request's group: events.k8s.io requires more than core.
func Event(gv schema.GroupVersion) Checks {
	return Checks{
		Create: created(func(e *core.Event) field.ErrorList { return validation.ValidateEventCreate(e, gv) }),
		Update: updated(func(e, old *core.Event) field.ErrorList { return validation.ValidateEventUpdate(e, old, gv) }),
	}
}

// EventToCore and EventToGroup convert events between core and events.k8s.io.
func EventToCore(obj resource.Object) (resource.Object, error) {
	out := &corev1.Event{}
	return out, convertThrough[core.Event](obj, out)
}

// EventToGroup is the inverse of EventToCore.
func EventToGroup(obj resource.Object) (resource.Object, error) {
	out := &eventsv1.Event{}
	return out, convertThrough[core.Event](obj, out)
}

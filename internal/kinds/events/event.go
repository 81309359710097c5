// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package events describes the one kind of the group events.k8s.io: the core group's events in another form. Both
// descriptors store core events under one prefix, so that each group shows events that were written through the other.
package events

import (
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"

	"github.com/mortise-dev/mortise/internal/kinds/core"
	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// hub is the group of the stored form: the core group's v1, which this group does not serve.
const hub = "core"

// Event describes events as events.k8s.io serves them.
func Event() *resource.Descriptor {
	check := upstream.Event(eventsv1.SchemeGroupVersion)
	v1 := kind.Version[eventsv1.Event](eventsv1.SchemeGroupVersion.WithKind("Event"))
	v1.Columns = upstream.Columns(corev1.SchemeGroupVersion.WithKind("Event"))
	v1.ToHub, v1.FromHub = upstream.EventToCore, upstream.EventToGroup
	stored := kind.Version[corev1.Event](corev1.SchemeGroupVersion.WithKind("Event"))
	stored.Name, stored.Unserved = hub, true
	return kind.Describe[corev1.Event](resource.Descriptor{
		Group:      "events.k8s.io",
		Resource:   "events",
		Kind:       "Event",
		ShortNames: []string{"ev"},
		Namespaced: true,
		Versions:   []resource.Version{v1, stored},
		Storage:    hub,
		Codec:      resource.ProtobufCodec(corev1.SchemeGroupVersion.WithKind("Event"), stored.New),
		TTL:        func(resource.Object) int64 { return core.EventSeconds },
		FieldNames: core.EventFieldNames(),
		Fields:     kind.Fields(core.EventFields),
		Strategy: resource.Strategy{
			Validate:       check.Create,
			ValidateUpdate: check.Update,
			CreateOnUpdate: true,
		},
	})
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package eventsink writes the Events of an event broadcaster of client-go. Unlike client-go's own sink, whose requests have no context, it
// ends a request that a server which is about to stop has answered with "try again later".
package eventsink

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
)

// Limit is how long the write of one Event may take, with the repetitions that the server asks for. The broadcaster tries again later.
const Limit = 5 * time.Second

// New returns a sink whose writes end with ctx, or after [Limit].
func New(ctx context.Context, events typedcorev1.EventsGetter) record.EventSink {
	return &sink{ctx, events.Events("")}
}

type sink struct {
	ctx    context.Context
	events typedcorev1.EventInterface
}

// Create implements [record.EventSink].
func (s *sink) Create(e *corev1.Event) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(s.ctx, Limit)
	defer cancel()
	return s.events.CreateWithEventNamespaceWithContext(ctx, e)
}

// Update implements [record.EventSink].
func (s *sink) Update(e *corev1.Event) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(s.ctx, Limit)
	defer cancel()
	return s.events.UpdateWithEventNamespaceWithContext(ctx, e)
}

// Patch implements [record.EventSink].
func (s *sink) Patch(e *corev1.Event, data []byte) (*corev1.Event, error) {
	ctx, cancel := context.WithTimeout(s.ctx, Limit)
	defer cancel()
	return s.events.PatchWithEventNamespaceWithContext(ctx, e, data)
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/tools/events"
)

// eventSink writes events for as long as the scheduler runs. What is on its way when it stops is lost, as it is where a process ends, and
// nothing is said of each. The broadcaster has a goroutine for each event, which waits for a worker.
type eventSink struct {
	events.EventSinkImpl
	workers *workers
}

// Create writes an event.
func (s *eventSink) Create(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	return s.write(ctx, e, func() (*eventsv1.Event, error) { return s.EventSinkImpl.Create(ctx, e) })
}

// Update writes an event anew.
func (s *eventSink) Update(ctx context.Context, e *eventsv1.Event) (*eventsv1.Event, error) {
	return s.write(ctx, e, func() (*eventsv1.Event, error) { return s.EventSinkImpl.Update(ctx, e) })
}

// Patch changes an event that is written already.
func (s *eventSink) Patch(ctx context.Context, e *eventsv1.Event, patch []byte) (*eventsv1.Event, error) {
	return s.write(ctx, e, func() (*eventsv1.Event, error) { return s.EventSinkImpl.Patch(ctx, e, patch) })
}

func (s *eventSink) write(ctx context.Context, e *eventsv1.Event, request func() (*eventsv1.Event, error)) (written *eventsv1.Event, err error) {
	s.workers.Do(ctx, func() { written, err = request() })
	if ctx.Err() != nil {
		return e, nil
	}
	return written, err
}

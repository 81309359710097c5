// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"errors"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
)

// TestEventsOfAnEndingScheduler: an event that cannot be written is told of while the scheduler runs, and not once it stops.
func TestEventsOfAnEndingScheduler(t *testing.T) {
	c := fake.NewClientset()
	refused := errors.New("no")
	c.PrependReactor("*", "events", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, refused })
	sink := &eventSink{events.EventSinkImpl{Interface: c.EventsV1()}, newWorkers()}
	e := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Name: "e", Namespace: "default"}}
	ctx, cancel := context.WithCancel(t.Context())
	writes := map[string]func() (*eventsv1.Event, error){
		"create": func() (*eventsv1.Event, error) { return sink.Create(ctx, e) },
		"update": func() (*eventsv1.Event, error) { return sink.Update(ctx, e) },
		"patch":  func() (*eventsv1.Event, error) { return sink.Patch(ctx, e, []byte(`{}`)) },
	}
	for name, write := range writes {
		if _, err := write(); !errors.Is(err, refused) {
			t.Errorf("%s says %v while the scheduler runs, want %v", name, err, refused)
		}
	}
	cancel()
	for name, write := range writes {
		if got, err := write(); err != nil || got != e {
			t.Errorf("%s says %v, %v when the scheduler stopped", name, got, err)
		}
	}
}

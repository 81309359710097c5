// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package sharedobjects gives a client in the API server's own process the objects of a watch themselves instead of bytes: the
// server does not encode what it has decoded, and the client neither copies nor decodes it again. The request passes all
// stages of the server like any other, but for its context, which only this process can make.
//
// [Watch] is the client's side. A server that supports this finds the [Receiver] in the request's context ([FromContext]), calls
// [Receiver.Begin] before the response's header, sends each event, and calls [Receiver.End]. A server that does not responds with bytes,
// and the client requests the watch again, to decode them.
//
// The server and all clients in the process share the objects: no one may change them.
package sharedobjects

import (
	"context"
	"io"
	"sync"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// ahead is how many events the server may be ahead of the client.
const ahead = 128

// aheadOfMetadata is the same for watches of metadata, of which there are several for each resource, most of them idle.
const aheadOfMetadata = 16

// Receiver receives the events of one watch. The server calls its methods from one goroutine.
type Receiver struct {
	begun  atomic.Bool
	events chan watch.Event
}

type key struct{}

// FromContext returns the receiver in a request's context; nil: the client expects bytes.
func FromContext(ctx context.Context) *Receiver {
	r, _ := ctx.Value(key{}).(*Receiver)
	return r
}

// Begin announces that the events come as objects. The server calls it before the response's header, and [Receiver.End] afterwards.
func (r *Receiver) Begin() { r.begun.Store(true) }

// Send hands an event over. It waits for a client that is behind, until ctx is done.
func (r *Receiver) Send(ctx context.Context, e watch.Event) error {
	select {
	case r.events <- e:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// End ends the events.
func (r *Receiver) End() { close(r.events) }

// Watch requests a watch; it calls otherwise if the server does not hand objects over. The watch ends with ctx.
func Watch(ctx context.Context, request *rest.Request, otherwise func() (watch.Interface, error)) (watch.Interface, error) {
	return receive(ctx, request, ahead, otherwise)
}

func receive(ctx context.Context, request *rest.Request, ahead int, otherwise func() (watch.Interface, error)) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &Receiver{events: make(chan watch.Event, ahead)}
	answer, err := request.Stream(context.WithValue(ctx, key{}, t))
	if err != nil {
		cancel()
		return nil, err
	}
	w := &watching{events: t.events, answer: answer, cancel: cancel}
	if !t.begun.Load() {
		w.Stop()
		return otherwise()
	}
	return w, nil
}

type watching struct {
	events chan watch.Event
	answer io.Closer
	cancel context.CancelFunc
	once   sync.Once
}

// ResultChan has the events. It is closed when the server ends the watch, which it does once that is stopped.
func (w *watching) ResultChan() <-chan watch.Event { return w.events }

// Stop ends the watch.
func (w *watching) Stop() {
	w.once.Do(func() {
		w.cancel()
		_ = w.answer.Close()
	})
}

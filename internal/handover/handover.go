// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package handover gives a client in the API server's own process the objects of a watch themselves instead of bytes: the
// server does not encode what it has decoded, and the client neither copies nor decodes it again. The request passes all
// stages of the server like any other, but for its context, which only this process can make.
//
// [Watch] is the client's side. A server that knows the context finds the [Taker] in it ([From]), says that it will hand over ([Taker.Begin])
// before it answers, tells each event, and ends. One that does not know it answers with bytes, and the client asks again for these.
//
// What is handed over is shared with the server and with all other clients that it was handed to: nobody may change it.
package handover

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

// Taker takes the events of one watch. The server's methods are for one goroutine.
type Taker struct {
	begun  atomic.Bool
	events chan watch.Event
}

type key struct{}

// From is the taker in a request's context; nil: the answer is to be bytes.
func From(ctx context.Context) *Taker {
	t, _ := ctx.Value(key{}).(*Taker)
	return t
}

// Begin says that the events will be told. It comes before the answer's header; [Taker.End] has to follow.
func (t *Taker) Begin() { t.begun.Store(true) }

// Tell hands an event over. It waits for the client where that is behind, until ctx is done.
func (t *Taker) Tell(ctx context.Context, e watch.Event) error {
	select {
	case t.events <- e:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// End says that there will be no more events.
func (t *Taker) End() { close(t.events) }

// Watch makes the request for a watch, and asks by otherwise where the server does not hand over. The watch ends with ctx.
func Watch(ctx context.Context, request *rest.Request, otherwise func() (watch.Interface, error)) (watch.Interface, error) {
	ctx, cancel := context.WithCancel(ctx)
	t := &Taker{events: make(chan watch.Event, ahead)}
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

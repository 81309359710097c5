// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package initializers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// waitingBackend is a backend that stores and hides objects that wait for initializers.
type waitingBackend interface {
	// FollowHeld calls tell for each waiting object and for each change of it until ctx ends. It calls tell with a nil
	// object when the object no longer waits or was deleted.
	FollowHeld(ctx context.Context, tell func(r schema.GroupResource, namespace, name string, obj resource.Object, gone bool)) error
	// SettleHeld lets change edit what an object waits for. It then releases the object or deletes it.
	SettleHeld(ctx context.Context, r schema.GroupResource, namespace, name string, change func(obj resource.Object) error) error
}

// errSettled ends a change when the object waits for something else by now.
var errSettled = errors.New("the object waits for something else")

// Run implements [admit.Runner]: it follows the waiting objects and acts when their deadlines expire.
func (p *Plugin) Run(ctx context.Context) error {
	k, ok := p.host.Backend().(waitingBackend)
	if !ok {
		return fmt.Errorf("follow uninitialized objects: %T keeps none", p.host.Backend())
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return k.FollowHeld(ctx, p.see(ctx)) })
	g.Go(func() error { p.ring(ctx, k); return nil })
	return g.Wait()
}

// see returns the function that handles changes of waiting objects.
func (p *Plugin) see(ctx context.Context) func(schema.GroupResource, string, string, resource.Object, bool) {
	return func(r schema.GroupResource, namespace, name string, obj resource.Object, gone bool) {
		t := p.held.see(objectRef{r, namespace, name}, obj, gone)
		if t == nil {
			return
		}
		took := max(p.clock.Since(t.waits.on.Since.Time), 0)
		p.meter.turn(t, took)
		ref := extension.Ref{Point: extension.Initializer, Name: t.waits.head().Name}
		switch t.result {
		case finished:
			if took < t.waits.until().Sub(t.waits.on.Since.Time) {
				p.host.Ledger.Book(ref, took, nil)
			} else { // the initializer was skipped
				p.host.Ledger.Book(ref, took, fmt.Errorf("%s waited for %v", t.waits.objectRef, took.Round(time.Second)))
			}
		case rejected:
			said := t.waits.on.Result.Message
			p.host.Ledger.Book(ref, took, fmt.Errorf("%s was rejected: %s", t.waits.objectRef, said))
			p.record(ctx, t.waits, said)
		}
	}
}

// ring acts on each object whose deadline has expired.
func (p *Plugin) ring(ctx context.Context, k waitingBackend) {
	for {
		due, again := p.held.next(p.clock.Now())
		if due != nil {
			if err := p.settle(ctx, k, due); err != nil && ctx.Err() == nil {
				p.host.Log.ErrorContext(ctx, "Could not initialize or reject an object", "object", due.String(), "initializer", due.head().Name,
					"error", err)
			}
			continue
		}
		if again.IsZero() {
			select {
			case <-ctx.Done():
				return
			case <-p.held.woken:
			}
			continue
		}
		timer := p.clock.NewTimer(again.Sub(p.clock.Now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-p.held.woken:
			timer.Stop()
		case <-timer.C():
		}
	}
}

// settle rejects or releases an object whose deadline expired. It deletes a rejected object that still exists.
func (p *Plugin) settle(ctx context.Context, k waitingBackend, w *waits) error {
	err := k.SettleHeld(ctx, w.GroupResource, w.namespace, w.name, func(obj resource.Object) error {
		is, err := v1alpha1.InitializersOf(obj)
		if err != nil || is == nil || obj.GetUID() != w.uid {
			return errSettled
		}
		if is.Result != nil {
			return nil
		}
		if w.rejected || len(is.Pending) == 0 || is.Pending[0].Name != w.head().Name || !is.Since.Equal(&w.on.Since) {
			return errSettled
		}
		now := metav1.NewMicroTime(p.clock.Now())
		if is.Pending[0].FailurePolicy == v1alpha1.Ignore {
			return v1alpha1.SetInitializers(obj, pass(is, now))
		}
		is.Result = &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Reason: v1alpha1.ReasonDeadlineExceeded,
			Message: fmt.Sprintf("initializer %s did not finish with %s within %v", w.head().Name, w.objectRef, w.until().Sub(w.on.Since.Time)),
		}
		return v1alpha1.SetInitializers(obj, is)
	})
	if errors.Is(err, errSettled) {
		return nil
	}
	return err
}

// record writes an event about a rejected object, because the object itself is deleted.
func (p *Plugin) record(ctx context.Context, w *waits, message string) {
	now := metav1.NewTime(p.clock.Now())
	namespace := cmp.Or(w.namespace, metav1.NamespaceDefault)
	apiVersion, kind := "", ""
	if d := p.host.Kind(w.GroupResource); d != nil {
		apiVersion, kind = d.HubGroupVersionKind().ToAPIVersionAndKind()
	}
	const longest = 1024 // bytes of an event's message
	e := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s.%x", w.name, now.UnixNano()), Namespace: namespace},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: apiVersion, Kind: kind, Namespace: w.namespace, Name: w.name, UID: w.uid,
		},
		Type: corev1.EventTypeWarning, Reason: "InitializationFailed", Message: message[:min(len(message), longest)],
		Source: corev1.EventSource{Component: "initializers"}, FirstTimestamp: now, LastTimestamp: now, Count: 1,
	}
	if _, err := p.host.Backend().Create(ctx, schema.GroupResource{Resource: "events"}, e, false); err != nil && ctx.Err() == nil {
		p.host.Log.ErrorContext(ctx, "Could not record the event of a rejected object", "object", w.String(), "error", err)
	}
}

// tellOf registers the waiting objects with the ledger and the metrics.
func (p *Plugin) tellOf(h *admit.Host) error {
	h.Ledger.Waits(p.held.waiting)
	p.meter = newMeter(p.held)
	if h.Metrics == nil {
		return nil
	}
	return h.Metrics.Register(p.meter)
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"context"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	typedeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
)

// nowhere takes events and does nothing with them.
type nowhere struct {
	typedeventsv1.EventInterface
	written *sync.WaitGroup
}

func (nowhere) RESTClient() rest.Interface                   { return nil }
func (n nowhere) Events(string) typedeventsv1.EventInterface { return n }
func (n nowhere) Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (*eventsv1.Event, error) {
	return nil, nil
}
func (n nowhere) Create(_ context.Context, e *eventsv1.Event, _ metav1.CreateOptions) (*eventsv1.Event, error) {
	n.written.Done()
	return e, nil
}

// BenchmarkEvents is what an event of its own costs from Eventf until it has been handed to the client.
func BenchmarkEvents(b *testing.B) {
	var written sync.WaitGroup
	to := nowhere{written: &written}
	run := func(name string, of func(*testing.B) func(*corev1.Pod)) {
		b.Run(name, func(b *testing.B) {
			event := of(b)
			b.ReportAllocs()
			p := pod("some-deployment-5d8c7b9f4-x2x7k")
			for i := range b.N {
				written.Add(1)
				p.UID = types.UID([]byte{byte(i), byte(i >> 8), byte(i >> 16), byte(i >> 24)})
				event(p)
				if i%512 == 511 {
					written.Wait() // client-go's drops what it has no room for
				}
			}
			written.Wait()
		})
	}
	recorder := func(b *testing.B) *Reporter {
		r := New(to, Options{})
		ended := make(chan struct{})
		ctx, cancel := context.WithCancel(b.Context())
		go func() { r.Run(ctx); close(ended) }()
		b.Cleanup(func() { cancel(); <-ended })
		return r.For("default-scheduler")
	}
	run("recorder", func(b *testing.B) func(*corev1.Pod) {
		r := recorder(b)
		return func(p *corev1.Pod) {
			r.Eventf(p, nil, "Normal", "Scheduled", "Binding", "%s", "Successfully assigned it")
		}
	})
	run("recorder, no format", func(b *testing.B) func(*corev1.Pod) {
		r := recorder(b)
		return func(p *corev1.Pod) { r.Event(p, nil, "Normal", "Scheduled", "Binding", "Successfully assigned it") }
	})
	run("client-go", func(b *testing.B) func(*corev1.Pod) {
		c := events.NewBroadcaster(&events.EventSinkImpl{Interface: to})
		b.Cleanup(c.Shutdown)
		if err := c.StartRecordingToSinkWithContext(b.Context()); err != nil {
			b.Fatal(err)
		}
		r := c.NewRecorder(scheme.Scheme, "default-scheduler")
		return func(p *corev1.Pod) {
			r.Eventf(p, nil, "Normal", "Scheduled", "Binding", "%s", "Successfully assigned it")
		}
	})
}

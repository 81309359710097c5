// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dns

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/internal/agent/dnsservice"
)

// The indexes of the informers.
const (
	servicesAt   = "mortise-dns/service-address"
	slicesAt     = "mortise-dns/endpoint-address"
	slicesOfName = "mortise-dns/service"
)

// Prepare adds what the DNS needs to informers that are not started yet.
func Prepare(f informers.SharedInformerFactory) error {
	f.Core().V1().Namespaces().Informer()
	err := f.Core().V1().Services().Informer().AddIndexers(cache.Indexers{servicesAt: func(obj any) ([]string, error) {
		svc, ok := obj.(*corev1.Service)
		if !ok || svc.Spec.Type == corev1.ServiceTypeExternalName {
			return nil, nil
		}
		var out []string
		for _, text := range dnsservice.ClusterIPs(svc) {
			if a, err := netip.ParseAddr(text); err == nil {
				out = append(out, a.String())
			}
		}
		return out, nil
	}})
	if err != nil {
		return fmt.Errorf("index services: %w", err)
	}
	err = f.Discovery().V1().EndpointSlices().Informer().AddIndexers(cache.Indexers{
		slicesOfName: func(obj any) ([]string, error) {
			if s, ok := obj.(*discoveryv1.EndpointSlice); ok {
				return []string{s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]}, nil
			}
			return nil, nil
		},
		slicesAt: func(obj any) ([]string, error) {
			s, ok := obj.(*discoveryv1.EndpointSlice)
			if !ok {
				return nil, nil
			}
			var out []string
			for i := range s.Endpoints {
				for _, text := range s.Endpoints[i].Addresses {
					if a, err := netip.ParseAddr(text); err == nil {
						out = append(out, a.String())
					}
				}
			}
			return out, nil
		},
	})
	if err != nil {
		return fmt.Errorf("index endpoint slices: %w", err)
	}
	return nil
}

// followed is the state in the informers.
type followed struct {
	informers.SharedInformerFactory
	serial atomic.Uint32
	synced []cache.InformerSynced
}

// follow handles events until it is stopped, to increase the serial.
func follow(f informers.SharedInformerFactory, now func() time.Time) (state *followed, stop func(), err error) {
	out := &followed{SharedInformerFactory: f}
	var stops []func() error
	stop = func() {
		for _, s := range stops {
			_ = s() // of an informer that has stopped itself
		}
	}
	out.serial.Store(uint32(now().Unix()))
	changed := func() { out.serial.Store(uint32(now().Unix())) }
	for _, informer := range []cache.SharedIndexInformer{
		f.Core().V1().Services().Informer(), f.Core().V1().Namespaces().Informer(), f.Discovery().V1().EndpointSlices().Informer(),
	} {
		r, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: func(any) { changed() }, DeleteFunc: func(any) { changed() },
			UpdateFunc: func(old, now any) {
				if old.(metav1.Object).GetResourceVersion() != now.(metav1.Object).GetResourceVersion() {
					changed()
				}
			},
		})
		if err != nil {
			stop()
			return nil, nil, fmt.Errorf("follow what the DNS needs: %w", err)
		}
		stops = append(stops, func() error { return informer.RemoveEventHandler(r) })
		out.synced = append(out.synced, r.HasSynced)
	}
	return out, stop, nil
}

func (f *followed) ready() bool {
	for _, s := range f.synced {
		if !s() {
			return false
		}
	}
	return true
}

// Serial implements [State].
func (f *followed) Serial() uint32 { return f.serial.Load() }

// Namespace implements [State].
func (f *followed) Namespace(name string) bool {
	_, err := f.Core().V1().Namespaces().Lister().Get(name)
	return err == nil
}

// Service implements [State].
func (f *followed) Service(namespace, name string) *corev1.Service {
	svc, err := f.Core().V1().Services().Lister().Services(namespace).Get(name)
	if err != nil {
		return nil
	}
	return svc
}

// ServiceAt implements [State].
func (f *followed) ServiceAt(a netip.Addr) *corev1.Service {
	for _, obj := range at(f.Core().V1().Services().Informer(), servicesAt, a.String()) {
		return obj.(*corev1.Service)
	}
	return nil
}

// Endpoints implements [State].
func (f *followed) Endpoints(namespace, name string) []Endpoint {
	var out []Endpoint
	for _, obj := range at(f.Discovery().V1().EndpointSlices().Informer(), slicesOfName, namespace+"/"+name) {
		out = append(out, endpoints(obj.(*discoveryv1.EndpointSlice))...)
	}
	return out
}

// EndpointsAt implements [State].
func (f *followed) EndpointsAt(a netip.Addr) []Endpoint {
	var out []Endpoint
	for _, obj := range at(f.Discovery().V1().EndpointSlices().Informer(), slicesAt, a.String()) {
		for _, e := range endpoints(obj.(*discoveryv1.EndpointSlice)) {
			if e.Address == a {
				out = append(out, e)
			}
		}
	}
	return out
}

func at(informer cache.SharedIndexInformer, index, key string) []any {
	found, err := informer.GetIndexer().ByIndex(index, key)
	if err != nil {
		panic("the DNS's informers were not prepared: " + err.Error())
	}
	return found
}

// endpoints returns the ready endpoints of a slice, one for each port; without ports, one for each address.
func endpoints(s *discoveryv1.EndpointSlice) []Endpoint {
	var out []Endpoint
	base := Endpoint{Namespace: s.Namespace, Service: s.Labels[discoveryv1.LabelServiceName]}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if e.Conditions.Ready != nil && !*e.Conditions.Ready {
			continue
		}
		for _, text := range e.Addresses {
			a, err := netip.ParseAddr(text)
			if err != nil {
				continue
			}
			one := base
			one.Address = a
			if e.Hostname != nil {
				one.Hostname = *e.Hostname
			}
			if len(s.Ports) == 0 {
				out = append(out, one)
			}
			for _, p := range s.Ports {
				with := one
				if p.Port != nil {
					with.Port = *p.Port
				}
				if p.Name != nil {
					with.PortName = *p.Name
				}
				if p.Protocol != nil {
					with.Protocol = string(*p.Protocol)
				}
				out = append(out, with)
			}
		}
	}
	return out
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upkeep

import (
	"context"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/resource"
)

// Registrations that the server makes are marked so. Those of its own groups it makes when it starts, and leaves them to
// whoever changes them later; those of definitions follow the definitions.
const (
	managed = "kube-aggregator.kubernetes.io/automanaged"
	follows = "true"
)

// Priorities of the groups and versions of definitions.
const (
	customGroup   = 1000
	customVersion = 100
)

// registered notes what a registration says. It wants the lock.
func (k *Keeper) registered(name string, obj resource.Object) {
	a, ok := obj.(*apiregistrationv1.APIService)
	switch {
	case !ok: // gone: perhaps a definition's
		delete(k.remote, name)
		k.add(key{what: definitions})
	case a.Spec.Service != nil:
		k.remote[name] = service{a.Spec.Service.Namespace, a.Spec.Service.Name}
		k.add(key{registrations, name})
	default:
		delete(k.remote, name)
	}
}

// served wakes the registrations of a service. It wants the lock.
func (k *Keeper) served(s service) {
	for name, at := range k.remote {
		if at == s {
			k.add(key{registrations, name})
		}
	}
}

// registration says of the registration of another API server whether there is a service behind it. Whether that answers is
// for those who call it to find out.
func (k *Keeper) registration(ctx context.Context, b Backend, name string) error {
	obj, err := b.Get(ctx, registrations, "", name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return err
	}
	a, ok := obj.(*apiregistrationv1.APIService)
	if !ok {
		return fmt.Errorf("keep registration: %T is none", obj)
	}
	if a.Spec.Service == nil {
		return nil
	}
	want, err := lacking(ctx, b, a.Spec.Service)
	if err != nil || want == nil {
		return err
	}
	for _, c := range a.Status.Conditions {
		if c.Type == want.Type && c.Status == want.Status && c.Reason == want.Reason && c.Message == want.Message {
			return nil
		}
	}
	err = b.UpdateStatus(ctx, registrations, "", name, server, func(obj resource.Object) { setCondition(obj.(*apiregistrationv1.APIService), *want, k.now()) })
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// lacking is the condition of a registration whose service is not there, or has nothing behind it; nil if it has.
func lacking(ctx context.Context, b resource.Backend, r *apiregistrationv1.ServiceReference) (*apiregistrationv1.APIServiceCondition, error) {
	refuse := func(reason, format string, a ...any) (*apiregistrationv1.APIServiceCondition, error) {
		return &apiregistrationv1.APIServiceCondition{
			Type: apiregistrationv1.Available, Status: apiregistrationv1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, a...),
		}, nil
	}
	obj, err := b.Get(ctx, services, r.Namespace, r.Name)
	if apierrors.IsNotFound(err) {
		return refuse("ServiceNotFound", "service/%s in %q is not present", r.Name, r.Namespace)
	} else if err != nil {
		return nil, err
	}
	svc, ok := obj.(*corev1.Service)
	if !ok || svc.Spec.Type != corev1.ServiceTypeClusterIP {
		return nil, nil
	}
	port, name, listens := int32(443), "", false
	if r.Port != nil {
		port = *r.Port
	}
	for _, p := range svc.Spec.Ports {
		if p.Port == port {
			name, listens = p.Name, true
			break
		}
	}
	if !listens {
		return refuse("ServicePortError", "service/%s in %q is not listening on port %d", r.Name, r.Namespace, port)
	}
	all, err := b.List(ctx, endpointSlices, r.Namespace)
	if err != nil {
		return nil, err
	}
	found := false
	for _, obj := range all {
		s, ok := obj.(*discoveryv1.EndpointSlice)
		if !ok || s.Labels[discoveryv1.LabelServiceName] != r.Name {
			continue
		}
		found = true
		if answers(s, name) {
			return nil, nil
		}
	}
	if !found {
		return refuse("EndpointsNotFound", "cannot find endpointslices for service/%s in %q", r.Name, r.Namespace)
	}
	return refuse("MissingEndpoints", "endpointslices for service/%s in %q have no addresses with port name %q", r.Name, r.Namespace, name)
}

// answers is true of a slice with a ready address behind a port.
func answers(s *discoveryv1.EndpointSlice, port string) bool {
	ready := false
	for _, e := range s.Endpoints {
		ready = ready || e.Conditions.Ready == nil || *e.Conditions.Ready
	}
	for _, p := range s.Ports {
		if ready && p.Name != nil && *p.Name == port {
			return true
		}
	}
	return false
}

func setCondition(a *apiregistrationv1.APIService, c apiregistrationv1.APIServiceCondition, now metav1.Time) {
	c.LastTransitionTime = now
	for i, have := range a.Status.Conditions {
		if have.Type != c.Type {
			continue
		}
		if have.Status == c.Status {
			c.LastTransitionTime = have.LastTransitionTime
		}
		a.Status.Conditions[i] = c
		return
	}
	a.Status.Conditions = append(a.Status.Conditions, c)
}

// defined notes which registrations a definition wants, and has those made that are new. It wants the lock.
func (k *Keeper) defined(name string, obj resource.Object) {
	old, now := k.known[name], registrationsOf(obj)
	delete(k.known, name)
	if now != nil {
		k.known[name] = now
	}
	for n := range now {
		k.wants[n]++
		if k.wants[n] == 1 {
			k.add(key{definitions, n})
		}
	}
	for n := range old {
		if k.wants[n]--; k.wants[n] == 0 {
			delete(k.wants, n)
			k.add(key{what: definitions})
		}
	}
}

// registrationsOf are those of a definition's served versions, by name.
func registrationsOf(obj resource.Object) map[string]schema.GroupVersion {
	d, ok := obj.(*apiextensionsv1.CustomResourceDefinition)
	if !ok || d == nil {
		return nil
	}
	want := map[string]schema.GroupVersion{}
	for _, v := range d.Spec.Versions {
		if v.Served {
			want[v.Name+"."+d.Spec.Group] = schema.GroupVersion{Group: d.Spec.Group, Version: v.Name}
		}
	}
	return want
}

// wanted are the registrations that the known definitions want.
func (k *Keeper) wanted() map[string]schema.GroupVersion {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := map[string]schema.GroupVersion{}
	for _, of := range k.known {
		maps.Copy(all, of)
	}
	return all
}

// register makes the registration of a version that a definition serves, unless it is there or not wanted any more.
func (k *Keeper) register(ctx context.Context, b Backend, name string) error {
	k.mu.Lock()
	stale := k.wants[name] == 0
	k.mu.Unlock()
	if stale {
		return nil
	}
	if _, err := b.Get(ctx, registrations, "", name); !apierrors.IsNotFound(err) {
		return err
	}
	version, group, _ := strings.Cut(name, ".")
	err := k.create(ctx, b, name, schema.GroupVersion{Group: group, Version: version})
	if apierrors.IsNotFound(err) {
		return nil // a server without registrations
	}
	return err
}

func (k *Keeper) create(ctx context.Context, b Backend, name string, gv schema.GroupVersion) error {
	_, err := b.Create(ctx, registrations, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{managed: follows}},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: customGroup, VersionPriority: customVersion,
		},
	}, false)
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return nil
}

// definitions registers the served versions of all definitions, and takes back what none serves any more. Definitions are
// only read when there is something to take back: another server may have stored some that this one has not been told of.
func (k *Keeper) definitions(ctx context.Context, b Backend) error {
	have, err := b.List(ctx, registrations, "")
	if apierrors.IsNotFound(err) {
		return nil // a server without registrations
	} else if err != nil {
		return err
	}
	want := k.wanted()
	var stale []string
	for _, obj := range have {
		name := obj.GetName()
		if _, ok := want[name]; ok {
			delete(want, name)
		} else if obj.GetLabels()[managed] == follows {
			stale = append(stale, name)
		}
	}
	if len(stale) > 0 {
		all, err := b.List(ctx, definitions, "")
		if apierrors.IsNotFound(err) {
			return nil // a server without definitions
		} else if err != nil {
			return err
		}
		served := map[string]schema.GroupVersion{}
		for _, obj := range all {
			maps.Copy(served, registrationsOf(obj))
		}
		for _, name := range stale {
			if _, ok := served[name]; ok {
				continue
			}
			if err := b.Delete(ctx, registrations, "", name, nil); err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
	}
	for name, gv := range want {
		if err := k.create(ctx, b, name, gv); err != nil {
			return err
		}
	}
	return nil
}

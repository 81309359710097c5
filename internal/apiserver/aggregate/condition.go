// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregate

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/resource"
)

// writer is the field manager of the conditions.
const writer = "kube-apiserver"

// finding is the content of a condition without its time.
type finding struct {
	kind            apiregistrationv1.APIServiceConditionType
	status          apiregistrationv1.ConditionStatus
	reason, message string
}

func refusal(reason, format string, args ...any) finding {
	return finding{apiregistrationv1.Available, apiregistrationv1.ConditionFalse, reason, fmt.Sprintf(format, args...)}
}

func doubt(reason, format string, args ...any) finding {
	return finding{apiregistrationv1.Available, apiregistrationv1.ConditionUnknown, reason, fmt.Sprintf(format, args...)}
}

// find reports whether a server is there and answers. The error is that of a look that is worth repeating soon.
func (a *Aggregator) find(ctx context.Context, s *Service) (finding, error) {
	b, at := a.o.Backend(), s.at
	obj, err := b.Get(ctx, services, at.namespace, at.name)
	switch {
	case apierrors.IsNotFound(err):
		return refusal("ServiceNotFound", "service/%s in %q is not present", at.name, at.namespace), nil
	case err != nil:
		return doubt("ServiceAccessError", "service/%s in %q cannot be checked due to: %v", at.name, at.namespace, err), err
	}
	if svc, ok := obj.(*corev1.Service); ok && svc.Spec.Type == corev1.ServiceTypeClusterIP {
		port := listens(svc, at.port)
		if port == nil {
			return refusal("ServicePortError", "service/%s in %q is not listening on port %d", at.name, at.namespace, at.port), nil
		}
		all, err := endpoints(ctx, b, at.reference)
		switch {
		case err != nil:
			return doubt("EndpointsAccessError", "service/%s in %q cannot be checked due to: %v", at.name, at.namespace, err), err
		case len(all) == 0:
			return refusal("EndpointsNotFound", "cannot find endpointslices for service/%s in %q", at.name, at.namespace), nil
		case !slices.ContainsFunc(all, func(s *discoveryv1.EndpointSlice) bool { return answers(s, port.Name) }):
			return refusal("MissingEndpoints", "endpointslices for service/%s in %q have no addresses with port name %q", at.name, at.namespace,
				port.Name), nil
		}
	}
	if err := a.probe(ctx, s); err != nil {
		return refusal("FailedDiscoveryCheck", "%s", clip(err.Error())), err
	}
	return finding{apiregistrationv1.Available, apiregistrationv1.ConditionTrue, "Passed", "all checks passed"}, nil
}

// longest is the maximum length of a message, which may come from the other server.
const longest = 4096

func clip(s string) string {
	if len(s) > longest {
		return s[:longest]
	}
	return s
}

// answers reports whether a slice has a ready address for a port.
func answers(s *discoveryv1.EndpointSlice, port string) bool {
	return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return e.Conditions.Ready == nil || *e.Conditions.Ready }) &&
		slices.ContainsFunc(s.Ports, func(p discoveryv1.EndpointPort) bool { return p.Name != nil && *p.Name == port && p.Port != nil })
}

// condition returns a registration's condition of a type, nil if there is none.
func condition(r *apiregistrationv1.APIService, kind apiregistrationv1.APIServiceConditionType) *apiregistrationv1.APIServiceCondition {
	for i := range r.Status.Conditions {
		if c := &r.Status.Conditions[i]; c.Type == kind {
			return c
		}
	}
	return nil
}

// write sets the condition of the registration to f, unless it is already set or the registration changed meanwhile.
func (a *Aggregator) write(ctx context.Context, s *Service, f finding) error {
	form := a.o.Form
	obj, err := a.o.Backend().Get(ctx, form.Resource, "", s.Name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get registration: %w", err)
	}
	r := form.registration(obj)
	if r == nil || r.UID != s.UID || r.Spec.Service == nil {
		return nil
	}
	read, ok := s.entry.reading.Load().finding(r, f)
	if f.said(r) && (!ok || read.said(r)) {
		return nil
	}
	if c := condition(r, f.kind); f.status != apiregistrationv1.ConditionTrue && c != nil && c.Status == apiregistrationv1.ConditionTrue {
		a.metrics.lost(s.Name, f.reason)
	}
	err = a.o.Backend().UpdateStatus(ctx, form.Resource, "", s.Name, writer, func(obj resource.Object) {
		if r := form.registration(obj); r != nil && r.UID == s.UID && r.Spec.Service != nil {
			now := metav1.NewTime(a.o.Clock.Now()).Rfc3339Copy()
			f.set(r, now)
			if ok {
				read.set(r, now)
			}
			form.SetConditions(obj, r.Status.Conditions)
		}
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func (f finding) said(r *apiregistrationv1.APIService) bool {
	c := condition(r, f.kind)
	return c != nil && c.Status == f.status && c.Reason == f.reason && c.Message == f.message
}

// set writes f into the registration's conditions, with the time of the newest change of the status.
func (f finding) set(r *apiregistrationv1.APIService, now metav1.Time) {
	next := apiregistrationv1.APIServiceCondition{
		Type: f.kind, Status: f.status, Reason: f.reason, Message: f.message, LastTransitionTime: now,
	}
	if c := condition(r, f.kind); c != nil {
		if c.Status == f.status {
			next.LastTransitionTime = c.LastTransitionTime
		}
		*c = next
		return
	}
	r.Status.Conditions = append(r.Status.Conditions, next)
}

// isLocal is the condition of a registration without a service.
var isLocal = finding{apiregistrationv1.Available, apiregistrationv1.ConditionTrue, "Local", "Local APIServices are always available"}

// localLater schedules the write of the condition of a registration without a service, if it differs. The caller holds mu.
func (a *Aggregator) localLater(r *apiregistrationv1.APIService) {
	if isLocal.said(r) {
		return
	}
	a.locals[r.Name] = true
	select {
	case a.due <- struct{}{}:
	default:
	}
}

func local(obj resource.Object) {
	if r, ok := obj.(*apiregistrationv1.APIService); ok && r.Spec.Service == nil {
		isLocal.set(r, metav1.Now().Rfc3339Copy())
	}
}

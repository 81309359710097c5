// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

var serviceNames = []corev1.ResourceName{
	CountName(services), corev1.ResourceServices, corev1.ResourceServicesNodePorts, corev1.ResourceServicesLoadBalancers,
}

// serviceEvaluator counts services, and the node ports and load balancers that they ask for.
type serviceEvaluator struct{}

// Charges: the type of a service, and its ports, may change.
func (serviceEvaluator) Charges(w Write) bool { return w.Subresource == "" }

func (serviceEvaluator) Names(_ context.Context, of []corev1.ResourceName) ([]corev1.ResourceName, error) {
	return intersect(of, serviceNames), nil
}

func (serviceEvaluator) Requires([]corev1.ResourceName, runtime.Object) error { return nil }

func (serviceEvaluator) Scoped() bool { return false }

func (serviceEvaluator) InScope(corev1.ScopedResourceSelectorRequirement, runtime.Object) (bool, error) {
	return false, nil
}

// Usage goes by what is asked for: node ports may not have been allocated yet.
func (serviceEvaluator) Usage(_ context.Context, obj runtime.Object) (corev1.ResourceList, error) {
	s, ok := obj.(*corev1.Service)
	if !ok {
		return nil, fmt.Errorf("measure service: it is a %T", obj)
	}
	balancers, ports := int64(0), 0
	switch s.Spec.Type {
	case corev1.ServiceTypeNodePort:
		ports = len(s.Spec.Ports)
	case corev1.ServiceTypeLoadBalancer:
		balancers, ports = 1, len(s.Spec.Ports)
		if allocate := s.Spec.AllocateLoadBalancerNodePorts; allocate != nil && !*allocate {
			ports = 0
			for i := range s.Spec.Ports {
				if s.Spec.Ports[i].NodePort != 0 {
					ports++
				}
			}
		}
	}
	return corev1.ResourceList{
		CountName(services): *decimal(1), corev1.ResourceServices: *decimal(1),
		corev1.ResourceServicesLoadBalancers: *decimal(balancers), corev1.ResourceServicesNodePorts: *decimal(int64(ports)),
	}, nil
}

// ServiceReleases reports whether an update of a service may have released usage that only the controller recalculates.
func ServiceReleases(before, updated *corev1.Service) bool {
	charged := func(s *corev1.Service) corev1.ServiceType {
		if t := s.Spec.Type; t == corev1.ServiceTypeNodePort || t == corev1.ServiceTypeLoadBalancer {
			return t
		}
		return ""
	}
	return charged(before) != charged(updated) || len(before.Spec.Ports) > len(updated.Spec.Ports)
}

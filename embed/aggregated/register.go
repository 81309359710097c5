// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"context"
	"fmt"
	"net"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
)

// The priorities of groups and versions for Register, the same as for CRDs.
const (
	groupPriority   = 1000
	versionPriority = 15
)

// Registration returns the objects that register a started server with the cluster: a Service of type ExternalName for host, a name or an
// address by which the cluster reaches this machine, and an APIService for each group version.
func (s *Server) Registration(host string) ([]runtime.Object, error) {
	_, text, err := net.SplitHostPort(s.address.String())
	if err != nil {
		return nil, fmt.Errorf("register aggregated server: %w", err)
	}
	number, err := strconv.ParseInt(text, 10, 32)
	if err != nil {
		return nil, fmt.Errorf("register aggregated server: %w", err)
	}
	port := int32(number)
	out := []runtime.Object{&corev1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: s.Service},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: host, Ports: []corev1.ServicePort{{Port: port}}},
	}}
	seen := map[schema.GroupVersion]bool{}
	for i := range s.Resources {
		gv := s.Resources[i].gvk().GroupVersion()
		if seen[gv] {
			continue
		}
		seen[gv] = true
		out = append(out, &apiregistrationv1.APIService{
			TypeMeta:   metav1.TypeMeta{APIVersion: "apiregistration.k8s.io/v1", Kind: "APIService"},
			ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group},
			Spec: apiregistrationv1.APIServiceSpec{
				Service: &apiregistrationv1.ServiceReference{Namespace: s.Namespace, Name: s.Service, Port: &port},
				Group:   gv.Group, Version: gv.Version, CABundle: s.CA(),
				GroupPriorityMinimum: groupPriority, VersionPriority: versionPriority,
			},
		})
	}
	return out, nil
}

// Register creates or updates the objects of [Server.Registration], by server-side apply. It does not wait until the cluster finds the
// server available.
func (s *Server) Register(ctx context.Context, host string) error {
	objects, err := s.Registration(host)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(s.Config)
	if err != nil {
		return fmt.Errorf("register aggregated server: %w", err)
	}
	for _, obj := range objects {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(obj)
		if err != nil {
			return fmt.Errorf("register aggregated server: %w", err)
		}
		u := &unstructured.Unstructured{Object: content}
		delete(u.Object, "status")
		unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
		var to dynamic.ResourceInterface = client.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1",
			Resource: "apiservices"})
		if u.GetKind() == "Service" {
			to = client.Resource(schema.GroupVersionResource{Version: "v1", Resource: "services"}).Namespace(s.Namespace)
		}
		if _, err := to.Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: "aggregated", Force: true}); err != nil {
			return fmt.Errorf("register aggregated server: apply %s %s: %w", u.GetKind(), u.GetName(), err)
		}
	}
	return nil
}

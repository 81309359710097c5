// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// The names of the kind [ExternalMetricsRoute].
const (
	ExternalMetricsRouteKind     = "ExternalMetricsRoute"
	ExternalMetricsRouteResource = "externalmetricsroutes"
)

// ExternalMetricsRoute sends the requests for some external metrics to one server of external.metrics.k8s.io/v1beta1. Requests
// that no route matches go to the server of the APIService v1beta1.external.metrics.k8s.io.
type ExternalMetricsRoute struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec   ExternalMetricsRouteSpec   `json:"spec"`
	Status ExternalMetricsRouteStatus `json:"status,omitzero"`
}

// ExternalMetricsRouteSpec is the requests that a route matches, and their server. A route matches a request if one of Metrics
// and one of Namespaces do. At least one of the two lists is set.
type ExternalMetricsRouteSpec struct {
	// Metrics are patterns of metric names; empty: all names. In a pattern '*' stands for any characters, also for none.
	Metrics []string `json:"metrics,omitempty"`
	// Namespaces are patterns of the namespaces of requests, which are those of the autoscalers; empty: all namespaces.
	Namespaces []string `json:"namespaces,omitempty"`
	// Priority decides among the routes that match a request: the highest wins, and among equal ones the first by name.
	Priority int32 `json:"priority,omitempty"`
	// Service is the server's.
	Service ServiceReference `json:"service"`
	// CABundle is PEM certificates that verify the server's serving certificate for NAME.NAMESPACE.svc. Empty: the system's roots do.
	CABundle []byte `json:"caBundle,omitempty"`
	// InsecureSkipTLSVerify accepts any serving certificate.
	InsecureSkipTLSVerify bool `json:"insecureSkipTLSVerify,omitempty"`
}

// ServiceReference names a port of a Service.
type ServiceReference struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	Port      *int32 `json:"port,omitempty"` // 443 if it is not set
}

// ExternalMetricsRouteStatus is what the API server knows of the route's server.
type ExternalMetricsRouteStatus struct {
	// Conditions has the type Available, as an APIService does. Requests are forwarded only while it is True.
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

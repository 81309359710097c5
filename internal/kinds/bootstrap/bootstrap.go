// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package bootstrap lists the objects that an API server creates when it starts, unless they exist: namespaces, roles and bindings, flow
// schemas and priority levels, priority classes, API services of its own groups, the default range of cluster IPs. [Objects] lists them
// all; fields.go computes the owners of their fields. The package writes nothing: the server does.
//
// A process creates the list once; its objects are shared and immutable.
package bootstrap

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

// Object is an object to create.
type Object struct {
	Resource schema.GroupResource
	Object   resource.Object
	// Finish sets fields that a kind does not let its creator set in a copy of Object; nil: there are none.
	Finish func(obj resource.Object, now metav1.Time)
	// Fields are the copy's managed fields, still without times.
	Fields []metav1.ManagedFieldsEntry
}

// Options are the settings that the objects depend on.
type Options struct {
	// ServiceCIDR are the ranges of cluster IPs.
	ServiceCIDR []netip.Prefix
	// Served are the group-versions that the server serves itself, each with its priorities.
	Served []GroupVersion
	// Authentication is the data of the ConfigMap in kube-system that lets extension API servers recognize the server's requests. None:
	// there is no ConfigMap.
	Authentication map[string]string
	// Identity is the server's identity, AdvertiseAddress the address for other servers; without them there is no lease.
	Identity                   string
	Hostname, AdvertiseAddress string
	Now                        time.Time
	// Accounts are the accounts of controllers that Kubernetes does not have.
	Accounts []Account
	// KubeletClient adds the binding that lets API servers use nodes.
	KubeletClient bool
	// MetricsReader adds the role by which viewers of a namespace read what its pods use.
	MetricsReader bool
}

// GroupVersion is a served group-version with its priorities.
type GroupVersion struct {
	schema.GroupVersion
	GroupPriority, VersionPriority int32
}

// The managers of flow schemas and priority levels: Producer writes their specs, Consumer their status.
const (
	Producer = "api-priority-and-fairness-config-producer-v1"
	Consumer = "api-priority-and-fairness-config-consumer-v1"
)

// AuthenticationName is the ConfigMap that extension API servers read.
const AuthenticationName = "extension-apiserver-authentication"

// TrackingName is the ConfigMap whose TrackingKey is the day since which the server records the use of legacy tokens.
const (
	TrackingName = "kube-apiserver-legacy-service-account-token-tracking"
	TrackingKey  = "since"
)

const server = "kube-apiserver"

// always are the objects that depend on no options.
var always = sync.OnceValue(func() []Object {
	return slices.Concat(namespaces(), priorities(), roles(), flows())
})

// Objects returns the objects in the order in which the server has to create them.
func Objects(o Options) []Object {
	all := slices.Clone(always())
	for _, a := range o.Accounts {
		all = append(all, a.role()...)
	}
	if o.KubeletClient {
		all = append(all, kubeletClient())
	}
	if o.MetricsReader {
		all = append(all, metricsReader())
	}
	if len(o.ServiceCIDR) > 0 {
		all = append(all, serviceCIDR(o.ServiceCIDR))
	}
	for _, gv := range o.Served {
		all = append(all, APIService(gv, "onstart"))
	}
	if len(o.Authentication) > 0 {
		all = append(all, of("", "configmaps", &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: AuthenticationName},
			Data:       o.Authentication,
		}))
	}
	if o.Identity != "" {
		all = append(all, lease(&o))
	}
	return append(all, tokenTracking(o.Now))
}

// Leases with this label and value are those of servers.
const (
	IdentityLabel = "apiserver.kubernetes.io/identity"
	IdentityValue = server
)

// LeaseSeconds is how long after its last renewal a server's lease is valid.
const LeaseSeconds = 3600

// lease returns the server's identity lease.
func lease(o *Options) Object {
	seconds, holder, now := int32(LeaseSeconds), o.Identity+"_"+string(uuid.NewUUID()), metav1.NewMicroTime(o.Now)
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: metav1.NamespaceSystem, Name: o.Identity,
			Labels: map[string]string{IdentityLabel: IdentityValue, corev1.LabelHostname: o.Hostname},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
	if o.AdvertiseAddress != "" {
		l.Annotations = map[string]string{"kubernetes.io/peer-advertise-address": o.AdvertiseAddress}
	}
	return of("coordination.k8s.io", "leases", l)
}

func of(group, resource string, obj resource.Object) Object {
	return Object{Resource: schema.GroupResource{Group: group, Resource: resource}, Object: obj, Fields: updated(obj, server)}
}

func namespaces() []Object {
	var out []Object
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		out = append(out, of("", "namespaces", &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: map[string]string{corev1.LabelMetadataName: name},
		}}))
	}
	return out
}

func priorities() []Object {
	var out []Object
	for _, c := range upstream.SystemPriorityClasses() {
		out = append(out, of("scheduling.k8s.io", "priorityclasses", c))
	}
	return out
}

func roles() []Object {
	const group = "rbac.authorization.k8s.io"
	var out []Object
	p := upstream.BootstrapPolicy()
	for i := range p.ClusterRoles {
		out = append(out, of(group, "clusterroles", &p.ClusterRoles[i]))
	}
	for i := range p.ClusterRoleBindings {
		out = append(out, of(group, "clusterrolebindings", &p.ClusterRoleBindings[i]))
	}
	for _, ns := range []string{metav1.NamespacePublic, metav1.NamespaceSystem} {
		for i := range p.Roles[ns] {
			out = append(out, of(group, "roles", &p.Roles[ns][i]))
		}
		for i := range p.RoleBindings[ns] {
			out = append(out, of(group, "rolebindings", &p.RoleBindings[ns][i]))
		}
	}
	return out
}

// flows returns the priority levels and flow schemas. An annotation says that the server updates their specs.
func flows() []Object {
	const group = "flowcontrol.apiserver.k8s.io"
	follow := func(m *metav1.ObjectMeta) {
		m.Annotations = map[string]string{flowcontrolv1.AutoUpdateAnnotationKey: "true"}
	}
	var out []Object
	for _, l := range slices.Concat(bootstrap.SuggestedPriorityLevelConfigurations, bootstrap.MandatoryPriorityLevelConfigurations) {
		l = l.DeepCopy()
		follow(&l.ObjectMeta)
		out = append(out, Object{Resource: schema.GroupResource{Group: group, Resource: "prioritylevelconfigurations"}, Object: l,
			Fields: updated(l, Producer)})
	}
	for _, s := range slices.Concat(bootstrap.SuggestedFlowSchemas, bootstrap.MandatoryFlowSchemas) {
		s = s.DeepCopy()
		follow(&s.ObjectMeta)
		fields := append([]metav1.ManagedFieldsEntry{applied(s, Consumer, "flowcontrol.apiserver.k8s.io/v1",
			`{"f:status":{"f:conditions":{"k:{\"type\":\"Dangling\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:reason":{},"f:status":{},"f:type":{}}}}}`)},
			updated(s, Producer)...)
		out = append(out, Object{Resource: schema.GroupResource{Group: group, Resource: "flowschemas"}, Object: s, Fields: fields, Finish: found})
	}
	return out
}

// found sets the condition of a flow schema whose priority level exists.
func found(obj resource.Object, now metav1.Time) {
	s := obj.(*flowcontrolv1.FlowSchema)
	s.Status.Conditions = []flowcontrolv1.FlowSchemaCondition{{
		Type: flowcontrolv1.FlowSchemaConditionDangling, Status: flowcontrolv1.ConditionFalse, LastTransitionTime: now, Reason: "Found",
		Message: fmt.Sprintf("This FlowSchema references the PriorityLevelConfiguration object named %q and it exists",
			s.Spec.PriorityLevelConfiguration.Name),
	}}
}

// ServiceCIDRName is the name of the ServiceCIDR with the server's configured ranges.
const ServiceCIDRName = "kubernetes"

func serviceCIDR(ranges []netip.Prefix) Object {
	s := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: ServiceCIDRName}}
	for _, r := range ranges {
		s.Spec.CIDRs = append(s.Spec.CIDRs, r.String())
	}
	o := of("networking.k8s.io", "servicecidrs", s)
	o.Fields = append([]metav1.ManagedFieldsEntry{applied(s, "kubernetes-service-cidr-controller", "networking.k8s.io/v1",
		`{"f:status":{"f:conditions":{"k:{\"type\":\"Ready\"}":{".":{},"f:lastTransitionTime":{},"f:message":{},"f:status":{},"f:type":{}}}}}`)},
		o.Fields...)
	o.Finish = func(obj resource.Object, now metav1.Time) {
		obj.(*networkingv1.ServiceCIDR).Status.Conditions = []metav1.Condition{{
			Type: networkingv1.ServiceCIDRConditionReady, Status: metav1.ConditionTrue, LastTransitionTime: now,
			Message: "Kubernetes default Service CIDR is ready",
		}}
	}
	return o
}

// APIService returns the registration of a group-version that the server serves itself. managed is "onstart" for built-in ones, "true" for
// those of CRDs.
func APIService(gv GroupVersion, managed string) Object {
	return of("apiregistration.k8s.io", "apiservices", &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group,
			Labels: map[string]string{"kube-aggregator.kubernetes.io/automanaged": managed}},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: gv.GroupPriority, VersionPriority: gv.VersionPriority,
		},
	})
}

// tokenTracking returns the ConfigMap with the day since which the server records the use of legacy tokens.
func tokenTracking(now time.Time) Object {
	return of("", "configmaps", &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: TrackingName},
		Data:       map[string]string{TrackingKey: now.UTC().Format(time.DateOnly)},
	})
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package bootstrap

import (
	"encoding/json"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"

	"github.com/mortise-dev/mortise/resource"
)

// set is the tree of fields that are owned below a field; a leaf is empty.
type set = map[string]any

// The field manager could compute all this, but it would read every kind's schema, for which a start has no time. A test compares with the
// field manager.

// updated returns the managed-fields entry of the manager that created obj.
func updated(obj resource.Object, manager string) []metav1.ManagedFieldsEntry {
	version, owned := spec(obj)
	if meta := metadata(obj); len(meta) > 0 {
		owned["f:metadata"] = meta
	}
	raw, err := json.Marshal(owned)
	if err != nil {
		panic(fmt.Sprintf("own fields of %T: %v", obj, err)) // a tree of maps always encodes
	}
	return []metav1.ManagedFieldsEntry{{
		Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: version, FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(string(raw)),
	}}
}

// applied returns the entry of a manager that applied to obj's status.
func applied(_ resource.Object, manager, version, fields string) metav1.ManagedFieldsEntry {
	return metav1.ManagedFieldsEntry{
		Manager: manager, Operation: metav1.ManagedFieldsOperationApply, APIVersion: version, FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(fields), Subresource: "status",
	}
}

func metadata(obj resource.Object) set {
	out := set{}
	for name, keys := range map[string]map[string]string{"f:labels": obj.GetLabels(), "f:annotations": obj.GetAnnotations()} {
		if len(keys) == 0 {
			continue
		}
		below := set{".": set{}}
		for key := range keys {
			below["f:"+key] = set{}
		}
		out[name] = below
	}
	return out
}

// leaves returns fields that are owned as a whole.
func leaves(names ...string) set {
	out := set{}
	for _, name := range names {
		out["f:"+name] = set{}
	}
	return out
}

// spec returns obj's version, and its fields, without the metadata, that its creator owns.
func spec(obj resource.Object) (string, set) {
	switch o := obj.(type) {
	case *corev1.Namespace:
		return "v1", set{}
	case *corev1.ConfigMap:
		data := set{".": set{}}
		for key := range o.Data {
			data["f:"+key] = set{}
		}
		return "v1", set{"f:data": data}
	case *coordinationv1.Lease:
		return "coordination.k8s.io/v1", set{"f:spec": leaves("holderIdentity", "leaseDurationSeconds", "renewTime")}
	case *schedulingv1.PriorityClass:
		return "scheduling.k8s.io/v1", leaves("description", "preemptionPolicy", "value")
	case *rbacv1.ClusterRole:
		if o.AggregationRule != nil {
			return "rbac.authorization.k8s.io/v1", set{"f:aggregationRule": set{".": set{}, "f:clusterRoleSelectors": set{}}}
		}
		return "rbac.authorization.k8s.io/v1", leaves("rules")
	case *rbacv1.Role:
		return "rbac.authorization.k8s.io/v1", leaves("rules")
	case *rbacv1.ClusterRoleBinding:
		return "rbac.authorization.k8s.io/v1", bound(o.Subjects)
	case *rbacv1.RoleBinding:
		return "rbac.authorization.k8s.io/v1", bound(o.Subjects)
	case *networkingv1.ServiceCIDR:
		return "networking.k8s.io/v1", set{"f:spec": leaves("cidrs")}
	case *apiregistrationv1.APIService:
		fields := leaves("groupPriorityMinimum", "version", "versionPriority")
		if o.Spec.Group != "" {
			fields["f:group"] = set{}
		}
		return "apiregistration.k8s.io/v1", set{"f:spec": fields}
	case *flowcontrolv1.FlowSchema:
		fields := leaves("matchingPrecedence", "rules")
		fields["f:priorityLevelConfiguration"] = leaves("name")
		if o.Spec.DistinguisherMethod != nil {
			fields["f:distinguisherMethod"] = set{".": set{}, "f:type": set{}}
		}
		return "flowcontrol.apiserver.k8s.io/v1", set{"f:spec": fields}
	case *flowcontrolv1.PriorityLevelConfiguration:
		fields := leaves("type")
		if o.Spec.Exempt != nil {
			fields["f:exempt"] = set{".": set{}, "f:lendablePercent": set{}, "f:nominalConcurrencyShares": set{}}
		}
		if l := o.Spec.Limited; l != nil {
			response := set{".": set{}, "f:type": set{}}
			if l.LimitResponse.Queuing != nil {
				response["f:queuing"] = set{".": set{}, "f:handSize": set{}, "f:queueLengthLimit": set{}, "f:queues": set{}}
			}
			fields["f:limited"] = set{".": set{}, "f:lendablePercent": set{}, "f:limitResponse": response, "f:nominalConcurrencyShares": set{}}
		}
		return "flowcontrol.apiserver.k8s.io/v1", set{"f:spec": fields}
	}
	panic(fmt.Sprintf("own fields: %T is not among the objects of a start", obj))
}

func bound(subjects []rbacv1.Subject) set {
	if len(subjects) == 0 {
		return leaves("roleRef")
	}
	return leaves("roleRef", "subjects")
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package kinds lists the built-in kinds. Each is a descriptor that one function returns, one file a kind, in the package of its group. To
// add a kind, add a file there and a line here.
package kinds

import (
	"net/netip"
	"slices"

	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/kinds/admissionregistration"
	"github.com/mortise-dev/mortise/internal/kinds/apiregistration"
	"github.com/mortise-dev/mortise/internal/kinds/apps"
	"github.com/mortise-dev/mortise/internal/kinds/authentication"
	"github.com/mortise-dev/mortise/internal/kinds/authorization"
	"github.com/mortise-dev/mortise/internal/kinds/autoscaling"
	"github.com/mortise-dev/mortise/internal/kinds/batch"
	"github.com/mortise-dev/mortise/internal/kinds/certificates"
	"github.com/mortise-dev/mortise/internal/kinds/coordination"
	"github.com/mortise-dev/mortise/internal/kinds/core"
	"github.com/mortise-dev/mortise/internal/kinds/devices"
	"github.com/mortise-dev/mortise/internal/kinds/discovery"
	"github.com/mortise-dev/mortise/internal/kinds/events"
	"github.com/mortise-dev/mortise/internal/kinds/flowcontrol"
	"github.com/mortise-dev/mortise/internal/kinds/networking"
	"github.com/mortise-dev/mortise/internal/kinds/node"
	"github.com/mortise-dev/mortise/internal/kinds/policy"
	"github.com/mortise-dev/mortise/internal/kinds/rbac"
	"github.com/mortise-dev/mortise/internal/kinds/scheduling"
	"github.com/mortise-dev/mortise/internal/kinds/storage"
	"github.com/mortise-dev/mortise/internal/kinds/storagemigration"
	"github.com/mortise-dev/mortise/resource"
)

// Options are the cluster's settings that the kinds depend on. The zero value is useful.
type Options struct {
	// ServiceCIDR are the ranges of cluster IPs, one for each IP family, the preferred first; none: 10.96.0.0/16.
	ServiceCIDR []netip.Prefix
	// AllowPrivileged lets pods have privileged containers.
	AllowPrivileged bool
	// Authorize and Rules answer access reviews; nil: only the group system:masters may do everything.
	Authorize authorization.Authorize
	Rules     authorization.Rules
	// Roles restricts the rights that users may grant with roles and bindings; zero: no restriction.
	Roles rbac.Authority
	// Verify answers token reviews; nil: every token is unknown.
	Verify authentication.Verify
	// Namespaces finds the namespaces in which claims may have admin access to devices; nil: none.
	Namespaces devices.Namespaces
	// RuntimeConfig selects the served versions and resources; zero: the stable ones.
	RuntimeConfig RuntimeConfig
	// Dial connects the proxies of nodes, pods and services to their targets; nil: the default dialer.
	Dial egress.Dial
}

// All returns the descriptors of all built-in kinds. Two calls share no state.
func All(o Options) []*resource.Descriptor {
	if len(o.ServiceCIDR) == 0 {
		o.ServiceCIDR = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16")}
	}
	if o.Authorize == nil {
		o.Authorize = authorization.Administrators
	}
	if o.Rules == nil {
		o.Rules = authorization.AdministratorRules
	}
	all := []*resource.Descriptor{
		core.Binding(),
		core.ComponentStatus(),
		core.ConfigMap(),
		core.Endpoints(),
		core.Event(),
		core.LimitRange(),
		core.Namespace(),
		core.Node(o.Dial),
		core.PersistentVolumeClaim(),
		core.PersistentVolume(),
		core.Pod(o.Dial),
		core.PodTemplate(),
		core.ReplicationController(),
		core.ResourceQuota(),
		core.Secret(),
		core.ServiceAccount(),
		core.Service(o.ServiceCIDR, o.Dial),

		admissionregistration.MutatingAdmissionPolicy(),
		admissionregistration.MutatingAdmissionPolicyBinding(),
		admissionregistration.MutatingWebhookConfiguration(),
		admissionregistration.ValidatingAdmissionPolicy(),
		admissionregistration.ValidatingAdmissionPolicyBinding(),
		admissionregistration.ValidatingWebhookConfiguration(),
		apiregistration.APIService(),
		authentication.SelfSubjectReview(),
		authentication.TokenReview(o.Verify),
		authorization.LocalSubjectAccessReview(o.Authorize),
		authorization.SelfSubjectAccessReview(o.Authorize),
		authorization.SelfSubjectRulesReview(o.Rules),
		authorization.SubjectAccessReview(o.Authorize),
		apps.ControllerRevision(),
		apps.DaemonSet(),
		apps.Deployment(),
		apps.ReplicaSet(),
		apps.StatefulSet(),
		autoscaling.HorizontalPodAutoscaler(),
		batch.CronJob(),
		batch.Job(),
		certificates.CertificateSigningRequest(),
		certificates.ClusterTrustBundle(),
		certificates.PodCertificateRequest(certificates.Authorize(o.Authorize)),
		coordination.Lease(),
		discovery.EndpointSlice(),
		events.Event(),
		flowcontrol.FlowSchema(),
		flowcontrol.PriorityLevelConfiguration(),
		networking.IPAddress(),
		networking.Ingress(),
		networking.IngressClass(),
		networking.NetworkPolicy(),
		networking.ServiceCIDR(),
		node.RuntimeClass(),
		policy.PodDisruptionBudget(),
		rbac.ClusterRole(o.Roles),
		rbac.ClusterRoleBinding(o.Roles),
		rbac.Role(o.Roles),
		rbac.RoleBinding(o.Roles),
		devices.DeviceClass(),
		devices.DeviceTaintRule(),
		devices.ResourceClaim(o.Namespaces, devices.Authorize(o.Authorize)),
		devices.ResourceClaimTemplate(o.Namespaces),
		devices.ResourceSlice(),
		scheduling.PriorityClass(),
		storage.CSIDriver(),
		storage.CSINode(),
		storage.CSIStorageCapacity(),
		storage.StorageClass(),
		storage.VolumeAttachment(),
		storage.VolumeAttributesClass(),
		storagemigration.StorageVersionMigration(),
	}
	if o.AllowPrivileged {
		for _, d := range all {
			if slices.Contains(runsPods, d.Kind) {
				allowPrivileged(d)
			}
		}
	}
	return o.RuntimeConfig.served(all)
}

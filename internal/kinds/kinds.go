// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package kinds lists the built-in kinds. Each is a descriptor made by one function, one file a kind, in the package of
// its group; adding a kind is adding a file there and a line here.
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

// Options are what the kinds must know of the cluster. The zero value is of use.
type Options struct {
	// ServiceCIDR are the ranges of cluster IPs, one for each IP family, the preferred first; none: 10.96.0.0/16.
	ServiceCIDR []netip.Prefix
	// AllowPrivileged lets pods have privileged containers.
	AllowPrivileged bool
	// Authorize and Rules answer access reviews; nil: only the group system:masters may do everything.
	Authorize authorization.Authorize
	Rules     authorization.Rules
	// Roles bounds what users may give to others by roles and bindings; zero: nothing bounds it.
	Roles rbac.Authority
	// Verify answers token reviews; nil: no token is known.
	Verify authentication.Verify
	// Namespaces finds those in which administrators may claim devices; nil: none.
	Namespaces devices.Namespaces
	// RuntimeConfig says which versions and resources are served; zero: those that are stable.
	RuntimeConfig RuntimeConfig
	// Dial is the way to what the proxies of nodes, pods and services reach; nil: the ordinary one.
	Dial egress.Dial
}

// All makes the descriptors of all built-in kinds. A second call makes others that share nothing with the first's.
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

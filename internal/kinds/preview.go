// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kinds

import (
	"slices"

	admissionregistrationv1alpha1 "k8s.io/api/admissionregistration/v1alpha1"
	admissionregistrationv1beta1 "k8s.io/api/admissionregistration/v1beta1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	coordinationv1alpha2 "k8s.io/api/coordination/v1alpha2"
	resourcev1alpha3 "k8s.io/api/resource/v1alpha3"
	resourcev1beta1 "k8s.io/api/resource/v1beta1"
	resourcev1beta2 "k8s.io/api/resource/v1beta2"
	storagemigrationv1beta1 "k8s.io/api/storagemigration/v1beta1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/kinds/apiserverinternal"
	"github.com/mortise-dev/mortise/internal/kinds/coordination"
	"github.com/mortise-dev/mortise/internal/kinds/devices"
	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/resource"
)

// further is an alpha or beta version of a kind that has another one.
type further struct {
	group, resource, version string
	add                      func(d *resource.Descriptor, version string)
}

// furtherVersions are the further versions that 1.37 can serve, by kind, the most preferred first.
func furtherVersions() []further {
	const (
		admission    = "admissionregistration.k8s.io"
		certificates = "certificates.k8s.io"
		device       = "resource.k8s.io"
	)
	return []further{
		{admission, "mutatingadmissionpolicies", "v1beta1", kind.Also[*admissionregistrationv1beta1.MutatingAdmissionPolicy]},
		{admission, "mutatingadmissionpolicies", "v1alpha1", kind.Also[*admissionregistrationv1alpha1.MutatingAdmissionPolicy]},
		{admission, "mutatingadmissionpolicybindings", "v1beta1", kind.Also[*admissionregistrationv1beta1.MutatingAdmissionPolicyBinding]},
		{admission, "mutatingadmissionpolicybindings", "v1alpha1", kind.Also[*admissionregistrationv1alpha1.MutatingAdmissionPolicyBinding]},
		{certificates, "clustertrustbundles", "v1beta1", kind.Also[*certificatesv1beta1.ClusterTrustBundle]},
		{certificates, "podcertificaterequests", "v1beta1", kind.Also[*certificatesv1beta1.PodCertificateRequest]},
		{"coordination.k8s.io", "leasecandidates", "v1alpha2", kind.Also[*coordinationv1alpha2.LeaseCandidate]},
		{device, "deviceclasses", "v1beta2", kind.Also[*resourcev1beta2.DeviceClass]},
		{device, "deviceclasses", "v1beta1", kind.Also[*resourcev1beta1.DeviceClass]},
		{device, "devicetaintrules", "v1beta2", kind.Also[*resourcev1beta2.DeviceTaintRule]},
		{device, "devicetaintrules", "v1alpha3", kind.Also[*resourcev1alpha3.DeviceTaintRule]},
		{device, "resourceclaims", "v1beta2", kind.Also[*resourcev1beta2.ResourceClaim]},
		{device, "resourceclaims", "v1beta1", kind.Also[*resourcev1beta1.ResourceClaim]},
		{device, "resourceclaimtemplates", "v1beta2", kind.Also[*resourcev1beta2.ResourceClaimTemplate]},
		{device, "resourceclaimtemplates", "v1beta1", kind.Also[*resourcev1beta1.ResourceClaimTemplate]},
		{device, "resourceslices", "v1beta2", kind.Also[*resourcev1beta2.ResourceSlice]},
		{device, "resourceslices", "v1beta1", kind.Also[*resourcev1beta1.ResourceSlice]},
		{"storagemigration.k8s.io", "storageversionmigrations", "v1beta1", kind.Also[*storagemigrationv1beta1.StorageVersionMigration]},
	}
}

// unstable are the kinds without a stable version.
func unstable() []*resource.Descriptor {
	return []*resource.Descriptor{
		apiserverinternal.StorageVersion(),
		coordination.LeaseCandidate(),
		devices.ResourcePoolStatusRequest(),
	}
}

// served selects what the configuration serves: it adds further versions and kinds to the stable kinds, and removes disabled ones. The
// storage version of a kind stays the same.
func (c RuntimeConfig) served(ds []*resource.Descriptor) []*resource.Descriptor {
	serves := func(d *resource.Descriptor, version string) bool {
		return c.Serves(schema.GroupVersionResource{Group: d.Group, Version: version, Resource: d.Resource})
	}
	var out []*resource.Descriptor
	for _, d := range slices.Concat(ds, unstable()) {
		for _, f := range furtherVersions() {
			if f.group == d.Group && f.resource == d.Resource && serves(d, f.version) {
				f.add(d, f.version)
			}
		}
		any := false
		for i := range d.Versions {
			v := &d.Versions[i]
			v.Unserved = v.Unserved || !serves(d, v.Name)
			any = any || !v.Unserved
		}
		if any {
			out = append(out, d)
		}
	}
	return out
}

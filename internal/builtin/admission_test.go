// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
)

// upstreamOrder is AllOrderedPlugins of k8s.io/kubernetes/pkg/kubeapiserver/options, release 1.37.
var upstreamOrder = []string{
	"AlwaysAdmit", "NamespaceAutoProvision", "NamespaceLifecycle", "NamespaceExists", "LimitPodHardAntiAffinityTopology", "LimitRanger",
	"ServiceAccount", "NodeRestriction", "TaintNodesByCondition", "AlwaysPullImages", "ImagePolicyWebhook", "PodSecurity", "PodNodeSelector",
	"Priority", "DefaultTolerationSeconds", "PodTolerationRestriction", "EventRateLimit", "ExtendedResourceToleration", "DefaultStorageClass",
	"StorageObjectInUseProtection", "PodGroupProtection", "OwnerReferencesPermissionEnforcement", "PersistentVolumeClaimResize",
	"RuntimeClass", "CertificateApproval", "CertificateSigning", "ClusterTrustBundleAttest", "CertificateSubjectRestriction",
	"DefaultIngressClass", "DenyServiceExternalIPs", "PodTopologyLabels", "NodeDeclaredFeatureValidator", "PodResizeValidator",
	"MutatingAdmissionPolicy", "MutatingAdmissionWebhook", "ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook", "ResourceQuota",
	"AlwaysDeny",
}

// onHere are the plug-ins that are on by themselves: those of kube-apiserver, save PodGroupProtection, which this release does not have,
// and NodeRestriction too.
var onHere = []string{
	"NamespaceLifecycle", "LimitRanger", "ServiceAccount", "NodeRestriction", "TaintNodesByCondition", "PodSecurity", "Priority",
	"DefaultTolerationSeconds", "DefaultStorageClass", "StorageObjectInUseProtection", "PersistentVolumeClaimResize", "RuntimeClass",
	"CertificateApproval", "CertificateSigning", "ClusterTrustBundleAttest", "CertificateSubjectRestriction", "DefaultIngressClass",
	"PodTopologyLabels", "NodeDeclaredFeatureValidator", "PodResizeValidator", "MutatingAdmissionPolicy", "MutatingAdmissionWebhook",
	"ValidatingAdmissionPolicy", "ValidatingAdmissionWebhook", "ResourceQuota",
}

// third is a third party's plug-in.
type third string

func (p third) Name() string { return string(p) }

func names(c admit.Chain) (out []string) {
	for _, p := range c {
		out = append(out, p.Name())
	}
	return out
}

// TestAdmissionOrder: the plug-ins run in kube-apiserver's order. Those of third parties come after all that may refuse or change an
// object, and before quota is charged.
func TestAdmissionOrder(t *testing.T) {
	var all []string
	for _, p := range admissionPlugins(AdmissionOptions{}) {
		all = append(all, p.name)
	}
	if diff := cmp.Diff(upstreamOrder, all); diff != "" {
		t.Errorf("all plug-ins (-kube-apiserver +here):\n%s", diff)
	}
	chain, err := Admission(AdmissionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(onHere, names(chain)); diff != "" {
		t.Errorf("plug-ins that are on (-want +got):\n%s", diff)
	}
	chain, err = Admission(AdmissionOptions{
		Enable: []string{"AlwaysDeny", "DenyServiceExternalIPs"}, // they take their places whatever the order here
		More:   []admit.Plugin{third("first"), third("second")},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := slices.Insert(slices.Clone(onHere), len(onHere)-1, "first", "second")
	want = slices.Insert(append(want, "AlwaysDeny"), slices.Index(want, "PodTopologyLabels"), "DenyServiceExternalIPs")
	if diff := cmp.Diff(want, names(chain)); diff != "" {
		t.Errorf("with more plug-ins (-want +got):\n%s", diff)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"context"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// test/authorization_test.go has a node's rejections over the wire, as kube-apiserver returns them. This test covers
// tokens and certificates, whose requests contain data that differs from run to run.

type objects struct {
	resource.Backend
	all map[string]resource.Object
}

func (o *objects) Get(_ context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error) {
	if obj := o.all[r.Resource+"/"+namespace+"/"+name]; obj != nil {
		return obj, nil
	}
	return nil, apierrors.NewNotFound(r, name)
}

func meta(namespace, name, uid string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + uid)}
}

func fixture() *objects {
	pod := func(name, node string, volumes ...corev1.Volume) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: meta("ns", name, name), Spec: corev1.PodSpec{NodeName: node, ServiceAccountName: "sa", Volumes: volumes}}
	}
	projected := func(s corev1.VolumeProjection) corev1.Volume {
		return corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{
			Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{s}}}}
	}
	claim := corev1.Volume{Name: "c", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "claim"}}}
	return &objects{all: map[string]resource.Object{
		"nodes//n1": &corev1.Node{ObjectMeta: meta("", "n1", "n1")},
		"pods/ns/mine": pod("mine", "n1", claim, projected(
			corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Audience: "vault"}}),
			projected(corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{SignerName: "example.com/signer"}})),
		"pods/ns/other":         pod("other", "n2"),
		"serviceaccounts/ns/sa": &corev1.ServiceAccount{ObjectMeta: meta("ns", "sa", "sa")},
		"persistentvolumeclaims/ns/claim": &corev1.PersistentVolumeClaim{ObjectMeta: meta("ns", "claim", "claim"),
			Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "pv"}},
		"persistentvolumes//pv": &corev1.PersistentVolume{ObjectMeta: meta("", "pv", "pv"),
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: corev1.PersistentVolumeSource{
				CSI: &corev1.CSIPersistentVolumeSource{Driver: "driver"}}}},
		"csidrivers//driver": &storagev1.CSIDriver{ObjectMeta: meta("", "driver", "driver"),
			Spec: storagev1.CSIDriverSpec{TokenRequests: []storagev1.TokenRequest{{Audience: "driven"}}}},
	}}
}

func admitted(t *testing.T, granted string, a *admit.Attributes) string {
	t.Helper()
	p := New().(*plugin)
	if err := p.Join(&admit.Host{Authorize: func(_ context.Context, at authorizer.Attributes) (authorizer.Decision, string, error) {
		if granted != "" && at.GetResource() == granted {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	}}); err != nil {
		t.Fatal(err)
	}
	a.User = &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes"}}
	a.Operation, a.Namespace, a.Version = admit.Create, "ns", "v1"
	if err := p.Mutate(t.Context(), fixture(), a); err != nil {
		return err.Error()
	}
	return ""
}

func TestTokens(t *testing.T) {
	for _, c := range []struct{ pod, uid, audience, granted, want string }{
		{"mine", "mine", "vault", "", ""},
		{"mine", "mine", "driven", "", ""}, // requested by its volume's driver
		{"mine", "mine", "bank", "", `system:node:n1 is not authorized to request tokens for audience "bank"`},
		{"mine", "mine", "bank", "bank", ""},
		{"mine", "mine", "a b", "", "node may only request 0 or 1 audiences"},
		{"mine", "stale", "vault", "", "does not match the UID in record"},
		{"mine", "", "vault", "", "node requested token with a pod binding without a uid"},
		{"other", "other", "", "", "node requested token bound to a pod scheduled on a different node"},
		{"gone", "gone", "", "", `pod "gone" not found`},
		{"", "", "", "", "node requested token not bound to a pod"},
	} {
		r := &authenticationv1.TokenRequest{}
		r.Spec.Audiences = strings.Fields(c.audience)
		if c.pod != "" {
			r.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: c.pod}
			if c.uid != "" {
				r.Spec.BoundObjectRef.UID = meta("", "", c.uid).UID
			}
		}
		got := admitted(t, c.granted, &admit.Attributes{Descriptor: &resource.Descriptor{Resource: "serviceaccounts"}, Subresource: "token",
			Name: "sa", Object: r})
		if c.want == "" && got != "" || !strings.Contains(got, c.want) {
			t.Errorf("%+v: got %q", c, got)
		}
	}
}

func TestPodCertificates(t *testing.T) {
	base := func() *certificatesv1.PodCertificateRequest {
		r := &certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r"}}
		r.Spec.NodeName, r.Spec.NodeUID = "n1", meta("", "", "n1").UID
		r.Spec.PodName, r.Spec.PodUID = "mine", meta("", "", "mine").UID
		r.Spec.ServiceAccountName, r.Spec.ServiceAccountUID, r.Spec.SignerName = "sa", meta("", "", "sa").UID, "example.com/signer"
		return r
	}
	for want, change := range map[string]func(r *certificatesv1.PodCertificateRequest){
		"": func(*certificatesv1.PodCertificateRequest) {},
		`PodCertificateRequest.Spec.NodeName="n2", which is not the requesting node "n1"`: func(
			r *certificatesv1.PodCertificateRequest) {
			r.Spec.NodeName = "n2"
		},
		"inconsistent with the running node": func(r *certificatesv1.PodCertificateRequest) { r.Spec.NodeUID = "x" },
		"which differs from running pod":     func(r *certificatesv1.PodCertificateRequest) { r.Spec.PodUID = "x" },
		`while retrieving pod "ns/gone"`:     func(r *certificatesv1.PodCertificateRequest) { r.Spec.PodName = "gone" },
		`pod "ns/other" is not running on node`: func(r *certificatesv1.PodCertificateRequest) {
			r.Spec.PodName, r.Spec.PodUID = "other", meta("", "", "other").UID
		},
		"contains serviceAccountName": func(
			r *certificatesv1.PodCertificateRequest) {
			r.Spec.ServiceAccountName = "root"
		},
		"differs from the running service accou": func(
			r *certificatesv1.PodCertificateRequest) {
			r.Spec.ServiceAccountUID = "x"
		},
		`does not mount a podCertificate projected volume for signer "example.com/other"`: func(
			r *certificatesv1.PodCertificateRequest) {
			r.Spec.SignerName = "example.com/other"
		},
	} {
		r := base()
		change(r)
		at := &admit.Attributes{Descriptor: &resource.Descriptor{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}, Name: "r",
			Object: r}
		if got := admitted(t, "", at); want == "" && got != "" || !strings.Contains(got, want) {
			t.Errorf("want %q, got %q", want, got)
		}
		if got := admitted(t, "example.com:other", at); strings.Contains(want, "does not mount") && got != "" {
			t.Errorf("granted: %q", got)
		}
	}
}

func TestNodeLabels(t *testing.T) {
	for label, want := range map[string]bool{
		"app": true, "example.com/a": true, "kubernetes.io/hostname": true, "node.kubernetes.io/x": true, "kubelet.kubernetes.io/x": true,
		"x.kubelet.kubernetes.io/y":   true,
		"topology.kubernetes.io/zone": true, "kubernetes.io/x": false, "x.k8s.io/y": false, "node-restriction.kubernetes.io/x": false,
		"a.node-restriction.kubernetes.io/x": false,
		"xkubernetes.io/a":                   true,
	} {
		if nodeLabel(label) != want {
			t.Errorf("may a node set %s: want %v", label, want)
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/pem"
	"fmt"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// signersName is of the signer that the test plays.
const signersName = "projected.example/pods"

// bundle is the authority as trust bundles have it.
func (s *signer) bundle() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.certificate.Raw}))
}

// projected has pods whose volumes hold trust bundles, plays their signer, and sees in their containers what becomes of the files.
func projected(t *testing.T, n *realNode) {
	old, young := newSigner(t, "old"), newSigner(t, "young")
	bundles := n.c.CertificatesV1().ClusterTrustBundles()
	bundle := &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: "projected.example:pods:1", Labels: map[string]string{"live": "yes"}},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signersName, TrustBundle: old.bundle()},
	}
	p := projecting("trusting",
		corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: &bundle.Name, Path: "name.pem"}},
		corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{
			SignerName: new(signersName), LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"live": "yes"}}, Path: "signer.pem",
		}},
		corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: new("none"), Optional: new(true), Path: "none.pem"}},
	)
	n.create(t, p)
	n.hasEvent(t, "trusting", "FailedMount", `while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "projected.example:pods:1" not found`)
	made, err := bundles.Create(t.Context(), bundle, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n.ready(t, "trusting")
	for file, want := range map[string]string{"name.pem": old.bundle(), "signer.pem": old.bundle(), "none.pem": ""} {
		if got := n.inside(t, "trusting", "cat /v/"+file); got != want {
			t.Errorf("%s is %q, not %q", file, got, want)
		}
	}
	made.Spec.TrustBundle = young.bundle()
	if _, err := bundles.Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.becomes(t, "trusting", "name.pem", young.bundle())
	n.becomes(t, "trusting", "signer.pem", young.bundle())
	if err := bundles.Delete(t.Context(), bundle.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
}

// projecting has one volume, which its container mounts at /v.
func projecting(name string, sources ...corev1.VolumeProjection) *corev1.Pod {
	p := idlePod(name)
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}}
	return p
}

// becomes waits, inside the container, until a file of the volume is as wanted.
func (n *realNode) becomes(t *testing.T, pod, file, want string) {
	t.Helper()
	if got := n.inside(t, pod, fmt.Sprintf(`for i in $(seq 200); do if [ "$(cat /v/%s)" = '%s' ]; then echo yes; exit; fi; sleep 0.1; done; cat /v/%[1]s`, file, want[:len(want)-1])); got != "yes\n" {
		t.Errorf("%s is %q, not %q", file, got, want)
	}
}

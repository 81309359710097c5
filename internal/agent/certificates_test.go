// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/pem"
	"path/filepath"
	"slices"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"
)

func projecting(name string, sources ...corev1.VolumeProjection) *corev1.Pod {
	pod := onePod(name)
	pod.Spec.ServiceAccountName = "default"
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}}
	return pod
}

func trustBundle(name, signer, word string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(word)}))},
	}
}

// projected is the volume's directory.
func (c *cluster) projected(pod *corev1.Pod) string {
	return filepath.Join(c.options.RootDir, "pods", string(pod.UID), "volumes/kubernetes.io~projected/v")
}

// followsKind says whether the node has watched objects of a resource.
func (c *cluster) followsKind(resource string) bool {
	return slices.ContainsFunc(c.client.Actions(), func(a clienttesting.Action) bool {
		return a.GetResource().Resource == resource && (a.GetVerb() == "watch" || a.GetVerb() == "list")
	})
}

// A pod waits for its trust bundles and has what changes in them; a node without such pods follows none.
func TestTrustBundlesAreFollowed(t *testing.T) {
	c, _ := newFake(t, nil)
	c.create(onePod("plain"))
	c.await("plain", "ready", isReady)
	if c.followsKind("clustertrustbundles") {
		t.Error("trust bundles are followed for nobody")
	}
	pod := c.create(projecting("p",
		corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: new("b"), Path: "name.pem"}},
		corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: new("a.example/s"), LabelSelector: &metav1.LabelSelector{}, Path: "signer.pem"}}))
	c.awaitEvent("p", `FailedMount: MountVolume.SetUp failed for volume "v" : [while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "b" not found, combination of signerName and labelSelector matched zero ClusterTrustBundles]`)
	bundles := c.client.CertificatesV1().ClusterTrustBundles()
	named, signers := trustBundle("b", "", "one"), trustBundle("a.example:s:1", "a.example/s", "two")
	for _, b := range []*certificatesv1.ClusterTrustBundle{named, signers} {
		if _, err := bundles.Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.await("p", "ready", isReady)
	c.awaitFile(c.projected(pod)+"/name.pem", named.Spec.TrustBundle)
	c.awaitFile(c.projected(pod)+"/signer.pem", signers.Spec.TrustBundle)
	for _, b := range []*certificatesv1.ClusterTrustBundle{trustBundle("b", "", "three"), trustBundle("a.example:s:1", "a.example/s", "four")} {
		if _, err := bundles.Update(t.Context(), b, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.awaitFile(c.projected(pod)+"/name.pem", trustBundle("", "", "three").Spec.TrustBundle)
	c.awaitFile(c.projected(pod)+"/signer.pem", trustBundle("", "", "four").Spec.TrustBundle)
}

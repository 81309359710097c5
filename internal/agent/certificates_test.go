// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/pem"
	"path/filepath"
	"slices"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"
)

func projecting(name string, sources ...corev1.VolumeProjection) *corev1.Pod {
	pod := onePod(name)
	pod.Spec.ServiceAccountName = "default"
	pod.Spec.Volumes = []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}}
	return pod
}

func trustBundle(name, signer, word string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer,
			TrustBundle: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(word)}))},
	}
}

// projected is the volume's directory.
func (c *cluster) projected(pod *corev1.Pod) string {
	return filepath.Join(c.options.Host.RootDir, "pods", string(pod.UID), "volumes/kubernetes.io~projected/v")
}

// followsKind reports whether the node has watched objects of a resource.
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
		corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{SignerName: new("a.example/s"),
			LabelSelector: &metav1.LabelSelector{}, Path: "signer.pem"}}))
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
	for _, b := range []*certificatesv1.ClusterTrustBundle{trustBundle("b", "", "three"),
		trustBundle("a.example:s:1", "a.example/s", "four")} {
		if _, err := bundles.Update(t.Context(), b, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	c.awaitFile(c.projected(pod)+"/name.pem", trustBundle("", "", "three").Spec.TrustBundle)
	c.awaitFile(c.projected(pod)+"/signer.pem", trustBundle("", "", "four").Spec.TrustBundle)
}

// A pod waits until its certificate is issued, without looking at the clock, and says why when it is denied.
func TestPodCertificatesAreFollowed(t *testing.T) {
	c, _ := newFake(t, nil)
	requests := c.client.CertificatesV1().PodCertificateRequests("default")
	w, err := requests.Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := c.client.CoreV1().ServiceAccounts("default").Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", UID: "account"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// The API server makes names of prefixes.
	c.answers.Prepend("create", "podcertificaterequests", func(action clienttesting.Action) (bool, runtime.Object, error) {
		r := action.(clienttesting.CreateAction).GetObject().(*certificatesv1.PodCertificateRequest)
		r.Name = r.GenerateName + r.Spec.PodName
		return false, nil, nil
	})
	source := corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{SignerName: "a.example/s", KeyType: "ECDSAP256",
		CertificateChainPath: "chain.pem", KeyPath: "key.pem"}}
	for name, condition := range map[string]string{"good": certificatesv1.PodCertificateRequestConditionTypeIssued,
		"bad": certificatesv1.PodCertificateRequestConditionTypeDenied} {
		pod := c.create(projecting(name, source))
		var r *certificatesv1.PodCertificateRequest
		for r == nil || r.Spec.PodName != name {
			r = (<-w.ResultChan()).Object.(*certificatesv1.PodCertificateRequest)
		}
		if s := r.Spec; s.NodeName != "n1" || s.NodeUID == "" || s.PodUID != pod.UID || s.ServiceAccountName != "default" ||
			s.ServiceAccountUID != "account" {
			t.Errorf("request %+v", s)
		}
		r = r.DeepCopy()
		r.Status = certificatesv1.PodCertificateRequestStatus{
			Conditions:       []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue, Reason: "Why", Message: "so"}},
			CertificateChain: trustBundle("", "", name).Spec.TrustBundle,
			BeginRefreshAt:   new(metav1.NewTime(time.Now().Add(time.Hour))), NotAfter: new(metav1.NewTime(time.Now().Add(2 * time.Hour))),
		}
		if _, err := requests.UpdateStatus(t.Context(), r, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if name == "good" {
			c.await(name, "ready", isReady)
			c.awaitFile(c.projected(pod)+"/chain.pem", r.Status.CertificateChain)
			continue
		}
		c.awaitEvent(name, `Denied: PodCertificateRequest default/req-bad was denied, reason="Why", message="so"`)
		c.awaitEvent(name, `FailedMount: MountVolume.SetUp failed for volume "v" : PodCertificateRequest was permanently denied: reason="Why" message="so"`)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// signersName is of the signer that the test plays.
const signersName = "projected.example/pods"

// bundle is the authority as trust bundles have it.
func (s *signer) bundle() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.certificate.Raw}))
}

// projected has pods whose volumes hold trust bundles and certificates, plays their signer, and sees in their containers what becomes of
// the files.
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
		corev1.VolumeProjection{ClusterTrustBundle: &corev1.ClusterTrustBundleProjection{Name: new("none"), Optional: new(true),
			Path: "none.pem"}},
	)
	n.create(t, p)
	n.hasEvent(t, "trusting", "FailedMount",
		`while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io "projected.example:pods:1" not found`)
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
	n.certified(t, old)
}

// certified has pods that get certificates of the signer: one is issued one, and another when its node has started again; a second
// is denied one.
func (n *realNode) certified(t *testing.T, s *signer) {
	source := corev1.VolumeProjection{PodCertificate: &corev1.PodCertificateProjection{
		SignerName: signersName, KeyType: "ECDSAP256", MaxExpirationSeconds: new(int32(7200)), CredentialBundlePath: "bundle.pem",
		KeyPath: "key.pem", CertificateChainPath: "chain.pem",
	}}
	n.create(t, projecting("certified", source))
	r := n.requested(t, "certified", nil)
	if owners := r.OwnerReferences; len(owners) != 1 || owners[0].Name != "certified" || owners[0].UID != r.Spec.PodUID {
		t.Errorf("owners: %v", owners)
	}
	n.hasEvent(t, "certified", "FailedMount", "credential bundle is not issued yet")
	chain := n.issue(t, s, r)
	n.ready(t, "certified")
	n.holds(t, r, chain)

	// What a node that starts again does not know any more, it asks for again; meanwhile the old files stay.
	n.stop()
	n.up(t)
	again := n.requested(t, "certified", r)
	n.holds(t, r, chain)
	chain = n.issue(t, s, again)
	n.becomes(t, "certified", "chain.pem", chain)
	n.holds(t, again, chain)
	if p := n.ready(t, "certified"); p.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Errorf("the container started again: %s", text(p.Status))
	}

	n.create(t, projecting("denied", source))
	r = n.requested(t, "denied", nil)
	n.decide(t, r, certificatesv1.PodCertificateRequestStatus{}, certificatesv1.PodCertificateRequestConditionTypeDenied)
	n.hasEvent(t, "denied", "Denied", `was denied, reason="Test", message="the test says so"`)
	n.hasEvent(t, "denied", "FailedMount", `PodCertificateRequest was permanently denied: reason="Test" message="the test says so"`)
}

// requested waits until the node has asked for a pod's certificate, once more after the last request.
func (n *realNode) requested(t *testing.T, pod string,
	last *certificatesv1.PodCertificateRequest) (r *certificatesv1.PodCertificateRequest) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	lw := cache.NewListWatchFromClient(n.c.CertificatesV1().RESTClient(), "podcertificaterequests", "default",
		fields.OneTermEqualSelector("spec.podName", pod))
	if _, err := watchtools.UntilWithSync(ctx, lw, &certificatesv1.PodCertificateRequest{}, nil, func(e watch.Event) (bool, error) {
		var ok bool
		r, ok = e.Object.(*certificatesv1.PodCertificateRequest)
		return ok && e.Type != watch.Deleted && (last == nil || r.Name != last.Name), nil
	}); err != nil {
		t.Fatalf("wait for a request of pod %s: %v", pod, err)
	}
	return r
}

// issue makes a certificate, and returns it.
func (n *realNode) issue(t *testing.T, s *signer, r *certificatesv1.PodCertificateRequest) string {
	t.Helper()
	request, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		t.Fatal(err)
	}
	if err := request.CheckSignature(); err != nil {
		t.Fatal("the node does not prove that it has the key:", err)
	}
	begin := time.Now().Truncate(time.Second)
	template := &x509.Certificate{SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: r.Name}, NotBefore: begin,
		NotAfter: begin.Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, s.certificate, request.PublicKey, s.key)
	if err != nil {
		t.Fatal(err)
	}
	chain := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	n.decide(t, r, certificatesv1.PodCertificateRequestStatus{
		CertificateChain: chain, NotBefore: new(metav1.NewTime(begin)), BeginRefreshAt: new(metav1.NewTime(begin.Add(30 * time.Minute))),
		NotAfter: new(metav1.NewTime(template.NotAfter)),
	}, certificatesv1.PodCertificateRequestConditionTypeIssued)
	return chain
}

func (n *realNode) decide(t *testing.T, r *certificatesv1.PodCertificateRequest, status certificatesv1.PodCertificateRequestStatus,
	condition string) {
	t.Helper()
	r = r.DeepCopy()
	r.Status = status
	r.Status.Conditions = []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue, Reason: "Test", Message: "the test says so",
		LastTransitionTime: metav1.Now()}}
	if _, err := n.c.CertificatesV1().PodCertificateRequests("default").UpdateStatus(t.Context(), r, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// holds looks inside the container for the certificate and the key that the request was of.
func (n *realNode) holds(t *testing.T, r *certificatesv1.PodCertificateRequest, chain string) {
	t.Helper()
	key := n.inside(t, "certified", "cat /v/key.pem")
	if got := n.inside(t, "certified", "cat /v/bundle.pem /v/chain.pem"); got != key+chain+chain {
		t.Errorf("files: %q, not %q with the key", got, chain)
	}
	if _, err := tls.X509KeyPair([]byte(chain), []byte(key)); err != nil {
		t.Errorf("the key is not of request %s: %v", r.Name, err)
	}
}

// projecting has one volume, which its container mounts at /v.
func projecting(name string, sources ...corev1.VolumeProjection) *corev1.Pod {
	p := idlePod(name)
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "v",
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}}
	return p
}

// becomes waits, inside the container, until a file of the volume is as wanted.
func (n *realNode) becomes(t *testing.T, pod, file, want string) {
	t.Helper()
	if got := n.inside(t, pod, fmt.Sprintf(
		`for i in $(seq 200); do if [ "$(cat /v/%s)" = '%s' ]; then echo yes; exit; fi; sleep 0.1; done; cat /v/%[1]s`, file,
		want[:len(want)-1])); got != "yes\n" {
		t.Errorf("%s is %q, not %q", file, got, want)
	}
}

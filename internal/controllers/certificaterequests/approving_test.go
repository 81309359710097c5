// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package certificaterequests

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// TestApprove: which reviews are asked for, and what their answers come to. What is not allowed is an error, so that it is
// looked at again.
func TestApprove(t *testing.T) {
	for name, c := range map[string]struct {
		signer, user, cn, allow, want string
		again                         bool
	}{
		"a bootstrapping user": {certificatesv1.KubeAPIServerClientKubeletSignerName, "system:bootstrap:abcdef", "system:node:a", "nodeclient",
			"Auto approving kubelet client certificate after SubjectAccessReview.", false},
		"the kubelet itself": {certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:a", "system:node:a", "selfnodeclient",
			"Auto approving self kubelet client certificate after SubjectAccessReview.", false},
		"another node":   {certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:b", "system:node:a", "selfnodeclient", "", true},
		"nobody may":     {certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:a", "system:node:a", "", "", true},
		"another signer": {certificatesv1.KubeletServingSignerName, "system:node:a", "system:node:a", "selfnodeclient", "", false},
		"no node":        {certificatesv1.KubeAPIServerClientKubeletSignerName, "jane", "jane", "selfnodeclient", "", false},
	} {
		der, err := x509.CreateCertificateRequest(rand.Reader, node(c.cn), key(t))
		if err != nil {
			t.Fatal(err)
		}
		csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: c.signer, Username: c.user, Usages: []certificatesv1.KeyUsage{"digital signature", "client auth"},
				Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			}}
		client := fake.NewClientset(csr.DeepCopy())
		client.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
			r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
			r.Status.Allowed = r.Spec.User == c.user && c.allow != "" && r.Spec.ResourceAttributes.Subresource == c.allow
			return true, r, nil
		})
		if err := approve(t.Context(), client, csr); (err != nil) != c.again {
			t.Errorf("%s: %v", name, err)
		}
		now, err := client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), "r", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		got := ""
		if len(now.Status.Conditions) > 0 {
			got = now.Status.Conditions[0].Message
		}
		if got != c.want {
			t.Errorf("%s: approved with %q, want %q", name, got, c.want)
		}
	}
}

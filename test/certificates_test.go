// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	watchtools "k8s.io/client-go/tools/watch"
)

// signingRequest makes a key, and a request for a certificate of it.
func signingRequest(t *testing.T, name, signer, cn string, organizations []string, usages ...certificatesv1.KeyUsage) (keyPEM []byte,
	csr *certificatesv1.CertificateSigningRequest) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: cn, Organization: organizations}}, key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw}), &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: signer, Usages: usages, Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		},
	}
}

// requestUntil waits until a signing request is as wanted.
func requestUntil(t *testing.T, c kubernetes.Interface, name string,
	ok func(*certificatesv1.CertificateSigningRequest) bool) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	w, err := c.CertificatesV1().CertificateSigningRequests().Watch(ctx,
		metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	e, err := watchtools.UntilWithoutRetry(ctx, w, func(e watch.Event) (bool, error) {
		csr, is := e.Object.(*certificatesv1.CertificateSigningRequest)
		return is && ok(csr), nil
	})
	if err != nil {
		t.Fatalf("wait for %s: %v", name, err)
	}
	return e.Object.(*certificatesv1.CertificateSigningRequest)
}

func issued(c *certificatesv1.CertificateSigningRequest) bool { return len(c.Status.Certificate) > 0 }

// with is the configuration of somebody else.
func (p *program) with(change func(*rest.Config)) kubernetes.Interface {
	p.t.Helper()
	c := rest.AnonymousClientConfig(p.config)
	change(c)
	client, err := kubernetes.NewForConfig(c)
	if err != nil {
		p.t.Fatal(err)
	}
	return client
}

// TestCertificates: a request is approved with kubectl and signed, and the certificate is its user; a kubelet comes in with a
// bootstrap token, and nobody has to approve it.
func TestCertificates(t *testing.T) {
	ctx := t.Context()
	p := up(t, t.TempDir(), "--node", "none", "--enable-bootstrap-token-auth")
	admin := p.client()
	requests := admin.CertificatesV1().CertificateSigningRequests()

	key, csr := signingRequest(t, "jane", certificatesv1.KubeAPIServerClientSignerName, "jane", []string{"devs"},
		certificatesv1.UsageClientAuth)
	csr.Spec.ExpirationSeconds = new(int32(3600))
	if _, err := requests.Create(ctx, csr, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if out := p.kubectl("certificate", "approve", "jane"); !strings.Contains(out, "approved") {
		t.Errorf("kubectl certificate approve: %s", out)
	}
	done := requestUntil(t, admin, "jane", issued)
	block, _ := pem.Decode(done.Status.Certificate)
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if left := time.Until(cert.NotAfter); left > time.Hour || left < 55*time.Minute {
		t.Errorf("the certificate ends in %v", left)
	}
	if out := p.kubectl("get", "csr", "jane"); !strings.Contains(out, "Approved,Issued") {
		t.Errorf("kubectl get csr: %s", out)
	}
	jane := p.with(func(c *rest.Config) { c.CertData, c.KeyData = done.Status.Certificate, key })
	me, err := jane.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil || me.Status.UserInfo.Username != "jane" || me.Status.UserInfo.Groups[0] != "devs" {
		t.Errorf("the certificate's user is %+v, %v", me, err)
	}

	// who may not approve or sign cannot, though roles let them write the subresources
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "requests"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"certificates.k8s.io"}, Resources: []string{"*"}, Verbs: []string{"get", "list", "create", "update", "patch"}},
	}}
	if _, err := admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "requests"},
		RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "requests"},
		Subjects: []rbacv1.Subject{{Kind: "Group", APIGroup: "rbac.authorization.k8s.io", Name: "devs"}}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, csr = signingRequest(t, "other", certificatesv1.KubeAPIServerClientSignerName, "root", nil, certificatesv1.UsageClientAuth)
	made, err := jane.CertificatesV1().CertificateSigningRequests().Create(ctx, csr, metav1.CreateOptions{})
	if err != nil || made.Spec.Username != "jane" {
		t.Fatalf("create: %v", err)
	}
	made.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Type: certificatesv1.CertificateApproved,
		Status: corev1.ConditionTrue, Reason: "x"}}
	if _, err := jane.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, "other", made,
		metav1.UpdateOptions{}); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), `user not permitted to approve requests with signerName "kubernetes.io/kube-apiserver-client"`) {
		t.Errorf("approve without permission: %v", err)
	}
	made.Status.Conditions, made.Status.Certificate = nil, done.Status.Certificate
	if _, err := jane.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, made,
		metav1.UpdateOptions{}); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), `user not permitted to sign requests with signerName "kubernetes.io/kube-apiserver-client"`) {
		t.Errorf("sign without permission: %v", err)
	}
	_, csr = signingRequest(t, "masters", certificatesv1.KubeAPIServerClientSignerName, "root", []string{"system:masters"},
		certificatesv1.UsageClientAuth)
	if _, err := jane.CertificatesV1().CertificateSigningRequests().Create(ctx, csr, metav1.CreateOptions{}); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed") {
		t.Errorf("ask for system:masters: %v", err)
	}
	bundles, err := admin.CertificatesV1().ClusterTrustBundles().List(ctx, metav1.ListOptions{})
	if err != nil || len(bundles.Items) != 1 || bundles.Items[0].Spec.TrustBundle != string(p.config.CAData) {
		t.Errorf("trust bundles: %v, %v", bundles, err)
	} else {
		bundle := bundles.Items[0].DeepCopy()
		bundle.Spec.TrustBundle += "\n"
		if _, err := jane.CertificatesV1().ClusterTrustBundles().Update(ctx, bundle, metav1.UpdateOptions{}); !apierrors.IsForbidden(err) ||
			!strings.Contains(err.Error(), `user not permitted to attest for signerName "kubernetes.io/kube-apiserver-serving"`) {
			t.Errorf("attest without permission: %v", err)
		}
	}
	// what breaks the signer's rules is approved, and then fails
	_, csr = signingRequest(t, "wrong", certificatesv1.KubeAPIServerClientSignerName, "x", nil, certificatesv1.UsageServerAuth)
	if _, err := requests.Create(ctx, csr, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	p.kubectl("certificate", "approve", "wrong")
	failed := requestUntil(t, admin, "wrong", func(c *certificatesv1.CertificateSigningRequest) bool { return len(c.Status.Conditions) > 1 })
	if c := failed.Status.Conditions[1]; c.Type != certificatesv1.CertificateFailed || c.Reason != "SignerValidationFailure" ||
		c.Message != "invalid usage for client certificate: server auth" {
		t.Errorf("the condition of a request that breaks the rules: %+v", c)
	}

	// a kubelet
	for name, group := range map[string]string{"create": "system:node-bootstrapper",
		"approve": "system:certificates.k8s.io:certificatesigningrequests:nodeclient"} {
		binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-" + name},
			RoleRef:  rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: group},
			Subjects: []rbacv1.Subject{{Kind: "Group", APIGroup: "rbac.authorization.k8s.io", Name: "system:bootstrappers"}}}
		if _, err := admin.RbacV1().ClusterRoleBindings().Create(ctx, binding, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	token := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-abcdef", Namespace: "kube-system"},
		Type: "bootstrap.kubernetes.io/token",
		StringData: map[string]string{"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
			"usage-bootstrap-signing": "true"}}
	if _, err := admin.CoreV1().Secrets("kube-system").Create(ctx, token, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubelet := p.with(func(c *rest.Config) { c.BearerToken = "abcdef.0123456789abcdef" })
	for i, user := range []kubernetes.Interface{kubelet, nil} {
		if user == nil { // again, with the certificate that it has by then
			user = p.with(func(c *rest.Config) { c.CertData, c.KeyData = done.Status.Certificate, key })
			if _, err := admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "renew"},
				RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole",
					Name: "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient"},
				Subjects: []rbacv1.Subject{{Kind: "Group", APIGroup: "rbac.authorization.k8s.io", Name: "system:nodes"}}},
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		name := fmt.Sprintf("node-csr-%d", i)
		var csr *certificatesv1.CertificateSigningRequest
		var next []byte
		next, csr = signingRequest(t, name, certificatesv1.KubeAPIServerClientKubeletSignerName, "system:node:n1", []string{"system:nodes"},
			certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth)
		if _, err := user.CertificatesV1().CertificateSigningRequests().Create(ctx, csr, metav1.CreateOptions{}); err != nil {
			t.Fatalf("create as a kubelet: %v", err)
		}
		done, key = requestUntil(t, admin, name, issued), next
		if c := done.Status.Conditions[0]; c.Reason != "AutoApproved" {
			t.Errorf("%s was approved by %+v", name, c)
		}
	}
	n1 := p.with(func(c *rest.Config) { c.CertData, c.KeyData = done.Status.Certificate, key })
	if _, err := n1.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("a node registers with its certificate: %v", err)
	}
}

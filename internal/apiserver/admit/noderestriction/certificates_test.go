// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package noderestriction

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

func TestSigningRequests(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	request := func(cn, block string) []byte {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: cn}}, key)
		if err != nil {
			t.Fatal(err)
		}
		return pem.EncodeToMemory(&pem.Block{Type: block, Bytes: der})
	}
	const (
		serving, client = "kubernetes.io/kubelet-serving", "kubernetes.io/kube-apiserver-client-kubelet"
		usual           = "CERTIFICATE REQUEST"
		other           = "can only create a node CSR with CN=system:node:n1"
		block           = "unable to parse csr: PEM block type must be CERTIFICATE REQUEST"
	)
	for _, c := range []struct {
		signer  string
		request []byte
		want    string
	}{
		{serving, request("system:node:n1", usual), ""},
		{client, request("system:node:n1", usual), ""},
		{serving, request("system:node:n2", usual), other},
		{client, request("system:node:n2", usual), other},
		{client, request("n1", usual), other},
		{"example.com/a", request("system:node:n2", usual), ""},
		{client, request("system:node:n1", "CERTIFICATE"), block},
		{client, []byte("no PEM"), block},
		{client, pem.EncodeToMemory(&pem.Block{Type: usual, Bytes: []byte("x")}), "unable to parse csr: asn1: "},
	} {
		csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"}}
		csr.Spec.SignerName, csr.Spec.Request = c.signer, c.request
		a := &admit.Attributes{Operation: admit.Create, Descriptor: kindOf("certificates.k8s.io", "certificatesigningrequests"), Name: "r",
			Object: csr}
		got, want := asNode(t, a), refusal(`certificatesigningrequests.certificates.k8s.io "r"`, c.want)
		if want == "" && got != "" || !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %q, want %q", c.signer, got, want)
		}
		a.Operation = admit.Update
		if got := asNode(t, a); got != "" {
			t.Errorf("%s: an update: %q", c.signer, got)
		}
	}
	a := &admit.Attributes{Operation: admit.Create, Descriptor: kindOf("certificates.k8s.io", "certificatesigningrequests"), Name: "r",
		Object: &corev1.Secret{}}
	if got := asNode(t, a); !strings.HasSuffix(got, "unexpected type *v1.Secret") {
		t.Errorf("no request: %q", got)
	}
	a = &admit.Attributes{Operation: admit.Update, Descriptor: kindOf("", "serviceaccounts"), Name: "sa", Namespace: "ns",
		Object: &corev1.Secret{}}
	if got := asNode(t, a); got != "" {
		t.Errorf("service accounts themselves are not looked at: %q", got)
	}
	a = &admit.Attributes{Operation: admit.Create, Descriptor: kindOf("", "configmaps"), Name: "x", Namespace: "ns",
		Object: &corev1.ConfigMap{}}
	if got := asNode(t, a); got != "" {
		t.Errorf("config maps are not looked at: %q", got)
	}
}

// TestPodCertificateFaults covers invalid requests, requests of mirror pods, and missing objects.
func TestPodCertificateFaults(t *testing.T) {
	base := func() *certificatesv1.PodCertificateRequest {
		r := &certificatesv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r"}}
		r.Spec.NodeName, r.Spec.NodeUID, r.Spec.PodName, r.Spec.PodUID = "n1", "uid-n1", "mine", "uid-mine"
		r.Spec.ServiceAccountName, r.Spec.ServiceAccountUID, r.Spec.SignerName = "sa", "uid-sa", "example.com/signer"
		return r
	}
	const what = `podcertificaterequests.certificates.k8s.io "r"`
	for _, c := range []struct {
		name      string
		operation admit.Operation
		sub       string
		object    resource.Object
		change    func(*objects)
		want      string
	}{
		{"fits", admit.Create, "", base(), nil, ""},
		{"an update", admit.Update, "", base(), nil, refusal(what, "unexpected operation UPDATE")},
		{"its status", admit.Create, "status", base(), nil, refusal(what, "unexpected subresource status")},
		{"no request", admit.Create, "", &corev1.Secret{}, nil, refusal(what, "unexpected type *v1.Secret")},
		{"no node", admit.Create, "", base(), func(o *objects) { delete(o.all, "nodes//n1") },
			`while retrieving node "n1" named in the PodCertificateRequest: node "n1" not found`},
		{"no pod", admit.Create, "", base(), func(o *objects) { delete(o.all, "pods/ns/mine") },
			`while retrieving pod "ns/mine" named in the PodCertificateRequest: pod "mine" not found`},
		{"no account", admit.Create, "", base(), func(o *objects) { delete(o.all, "serviceaccounts/ns/sa") },
			`while retrieving service account "ns/sa" named in the PodCertificateRequest: serviceaccount "sa" not found`},
		{"not a pod", admit.Create, "", base(), func(o *objects) { o.all["pods/ns/mine"] = &corev1.Secret{} },
			refusal(what, `while retrieving pod "ns/mine" named in the PodCertificateRequest: unexpected type *v1.Secret`)},
		{"a mirror pod", admit.Create, "", base(), func(o *objects) {
			o.all["pods/ns/mine"].SetAnnotations(map[string]string{corev1.MirrorPodAnnotationKey: ""})
		}, refusal(what, `pod "ns/mine" is a mirror pod`)},
		{"another node's UID", admit.Create, "", base(), func(o *objects) { o.all["nodes//n1"].SetUID(types.UID("new")) },
			`PodCertificateRequest for pod "ns/mine" names node UID "uid-n1", inconsistent with the running node ("new")`},
	} {
		o := fixture()
		if c.change != nil {
			c.change(o)
		}
		a := &admit.Attributes{Operation: c.operation, Subresource: c.sub, Descriptor: kindOf("certificates.k8s.io", "podcertificaterequests"),
			Namespace: "ns", Name: "r", Object: c.object}
		a.User = &user.DefaultInfo{Name: "system:node:n1", Groups: []string{"system:nodes"}}
		if got := said(New().(*plugin).Mutate(context.Background(), o, a)); got != c.want {
			t.Errorf("%s:\n got %q\nwant %q", c.name, got, c.want)
		}
	}
}

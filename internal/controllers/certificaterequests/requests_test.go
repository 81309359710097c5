// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package certificaterequests

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
)

func key(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func authority(t *testing.T, now time.Time, life time.Duration) *controllers.Authority {
	t.Helper()
	k := key(t)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life), IsCA: true,
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, k.Public(), k)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return &controllers.Authority{Certificate: c, Key: k}
}

func request(t *testing.T, r *x509.CertificateRequest) *x509.CertificateRequest {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader, r, key(t))
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := parse(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func node(cn string, names ...string) *x509.CertificateRequest {
	return &x509.CertificateRequest{Subject: pkix.Name{CommonName: cn, Organization: []string{"system:nodes"}}, DNSNames: names}
}

// TestSigners: what each signer takes, and its words for what it does not.
func TestSigners(t *testing.T) {
	const (
		client, serving, api, legacy = "kubernetes.io/kube-apiserver-client-kubelet", "kubernetes.io/kubelet-serving",
			"kubernetes.io/kube-apiserver-client", "kubernetes.io/legacy-unknown"
	)
	for _, c := range []struct {
		signer string
		r      *x509.CertificateRequest
		usages string
		want   string
	}{
		{client, node("system:node:a"), "digital signature,client auth", ""},
		{client, node("system:node:a"), "client auth,key encipherment,digital signature", ""},
		{client, node("system:node:a"), "client auth", "usages did not match [client auth digital signature key encipherment]"},
		{client, node("system:node:a"), "digital signature,client auth,server auth",
			"usages did not match [client auth digital signature key encipherment]"},
		{client, node("node:a"), "digital signature,client auth", "subject common name does not begin with system:node:"},
		{client, node("system:node:a", "x.dev"), "digital signature,client auth", "DNS subjectAltNames are not allowed"},
		{client, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:a"}}, "digital signature,client auth",
			"subject organization is not system:nodes"},
		{serving, node("system:node:a", "a"), "digital signature,server auth", ""},
		{serving, node("system:node:a"), "digital signature,server auth", "DNS or IP subjectAltName is required"},
		{serving, node("system:node:a", "a"), "digital signature,client auth",
			"usages did not match [digital signature key encipherment server auth]"},
		{serving, node("a", "a"), "digital signature,server auth", "subject common name does not begin with system:node:"},
		{api, node("jane"), "client auth", ""},
		{api, node("jane"), "client auth,server auth", "invalid usage for client certificate: server auth"},
		{api, node("jane"), "digital signature", "missing required usage for client certificate: client auth"},
		{legacy, node("anything"), "cert sign", ""},
	} {
		var asked []certificatesv1.KeyUsage
		for u := range strings.SplitSeq(c.usages, ",") {
			asked = append(asked, certificatesv1.KeyUsage(u))
		}
		got := ""
		if err := signers[c.signer](c.r, asked); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s, %s, %s: %q, want %q", c.signer, c.r.Subject, c.usages, got, c.want)
		}
	}
}

// TestSign: the certificate has the request's names, no more usages than asked for, and ends in time.
func TestSign(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	ca := authority(t, now, 10*365*24*time.Hour)
	r := request(t, &x509.CertificateRequest{Subject: pkix.Name{CommonName: "jane", Organization: []string{"a", "b"}},
		DNSNames: []string{"x.dev"}, IPAddresses: []net.IP{net.IPv4(10, 0, 0, 1).To4()}})
	seconds := func(n int32) *int32 { return &n }
	for _, c := range []struct {
		asked    *int32
		ca       *controllers.Authority
		from, to time.Duration
	}{
		{nil, ca, -5 * time.Minute, life - 5*time.Minute},
		{seconds(3600), ca, -5 * time.Minute, time.Hour},
		{seconds(8 * 3600), ca, -5 * time.Minute, 8*time.Hour - 5*time.Minute},
		{seconds(10), ca, -5 * time.Minute, 10 * time.Minute},
		{seconds(1 << 30), ca, -5 * time.Minute, life - 5*time.Minute},
		{nil, authority(t, now, time.Hour), -5 * time.Minute, time.Hour},
	} {
		data, err := Sign(c.ca, r, []certificatesv1.KeyUsage{"server auth", "client auth", "digital signature", "client auth"},
			lifetime(c.asked, 0), now)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(data)
		got, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if !got.NotBefore.Equal(now.Add(c.from)) || !got.NotAfter.Equal(now.Add(c.to)) {
			t.Errorf("from %v to %v, want %v to %v", got.NotBefore.Sub(now), got.NotAfter.Sub(now), c.from, c.to)
		}
		if got.Subject.String() != r.Subject.String() || !slices.Equal(got.DNSNames, r.DNSNames) || len(got.IPAddresses) != 1 || got.IsCA ||
			got.KeyUsage != x509.KeyUsageDigitalSignature || !slices.Equal(got.ExtKeyUsage,
			[]x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}) {
			t.Errorf("%+v", got)
		}
		if err := got.CheckSignatureFrom(c.ca.Certificate); err != nil {
			t.Error(err)
		}
	}
	if _, err := Sign(authority(t, now, -time.Minute), r, nil, time.Hour, now); err == nil ||
		!strings.Contains(err.Error(), "the signer has expired") {
		t.Errorf("an authority that is over: %v", err)
	}
	if _, err := Sign(ca, r, []certificatesv1.KeyUsage{"magic"}, time.Hour, now); err == nil ||
		err.Error() != `unrecognized usage values: "magic"` {
		t.Errorf("an unknown usage: %v", err)
	}
	r.Signature[5]++
	if _, err := Sign(ca, r, nil, time.Hour, now); err == nil ||
		!strings.Contains(err.Error(), "unable to verify certificate request signature") {
		t.Errorf("a forged request: %v", err)
	}
}

// TestEnds: when each sort of request has had its time.
func TestEnds(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	ca := authority(t, now, 10*365*24*time.Hour)
	issue := func(ttl time.Duration) []byte {
		data, err := Sign(ca, request(t, node("a")), nil, ttl, now)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	condition := func(kind certificatesv1.RequestConditionType) []certificatesv1.CertificateSigningRequestCondition {
		return []certificatesv1.CertificateSigningRequestCondition{{Type: kind, LastUpdateTime: metav1.NewTime(now)}}
	}
	for name, c := range map[string]struct {
		status certificatesv1.CertificateSigningRequestStatus
		want   time.Duration
	}{
		"pending": {certificatesv1.CertificateSigningRequestStatus{}, 24*time.Hour - time.Minute},
		"denied":  {certificatesv1.CertificateSigningRequestStatus{Conditions: condition(certificatesv1.CertificateDenied)}, time.Hour},
		"failed":  {certificatesv1.CertificateSigningRequestStatus{Conditions: condition(certificatesv1.CertificateFailed)}, time.Hour},
		"approved": {certificatesv1.CertificateSigningRequestStatus{Conditions: condition(certificatesv1.CertificateApproved)},
			24 * time.Hour},
		"issued": {certificatesv1.CertificateSigningRequestStatus{Conditions: condition(certificatesv1.CertificateApproved),
			Certificate: issue(24 * time.Hour)}, time.Hour},
		"issued, not valid": {certificatesv1.CertificateSigningRequestStatus{Conditions: condition(certificatesv1.CertificateApproved),
			Certificate: issue(time.Minute)}, time.Minute},
	} {
		csr := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))},
			Status: c.status}
		if got := ends(csr).Sub(now); got != c.want {
			t.Errorf("%s: ends after %v, want %v", name, got, c.want)
		}
	}
}

// TestAuthorities: a signer with an authority of its own signs with that, which may change; and nothing is good for longer than is set.
func TestAuthorities(t *testing.T) {
	now := time.Now()
	all, first, second := authority(t, now, time.Hour), authority(t, now, time.Hour), authority(t, now, time.Hour)
	held := first
	c := &controllers.Cluster{Signer: all,
		Signers: map[string]func() *controllers.Authority{"own": func() *controllers.Authority { return held }}}
	if authorityFor(c, "other") != all || authorityFor(c, "own") != first {
		t.Error("a signer has another's authority")
	}
	if held = second; authorityFor(c, "own") != second {
		t.Error("a signer keeps the authority that was")
	}
	seconds := func(n int32) *int32 { return &n }
	for _, c := range []struct {
		asked      *int32
		most, want time.Duration
	}{
		{nil, 0, life},
		{nil, time.Hour, time.Hour},
		{seconds(1800), time.Hour, 30 * time.Minute},
		{seconds(7200), time.Hour, time.Hour},
		{seconds(60), time.Hour, 10 * time.Minute},
		{seconds(600), 5 * time.Minute, 5 * time.Minute},
	} {
		if got := lifetime(c.asked, c.most); got != c.want {
			t.Errorf("%v of %v asked for: %v, want %v", c.asked, c.most, got, c.want)
		}
	}
}

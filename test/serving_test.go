// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// server writes a certificate and its key for a server of these names: the key is encoded by form.
func (s *signer) server(t *testing.T, form, name string, hosts ...string) (certFile, keyFile string) {
	t.Helper()
	var key crypto.Signer
	var err error
	switch algorithm, _, _ := strings.Cut(form, " "); algorithm {
	case "RSA":
		key, err = rsa.GenerateKey(rand.Reader, 2048)
	case "Ed25519":
		_, key, err = ed25519.GenerateKey(rand.Reader)
	default:
		key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(3), Subject: pkix.Name{CommonName: name}, NotBefore: s.certificate.NotBefore, NotAfter: s.certificate.NotAfter,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			c.IPAddresses = append(c.IPAddresses, ip)
		} else {
			c.DNSNames = append(c.DNSNames, h)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, c, s.certificate, key.Public(), s.key)
	if err != nil {
		t.Fatal(err)
	}
	block := &pem.Block{Type: "PRIVATE KEY"}
	switch key := key.(type) {
	case *rsa.PrivateKey:
		if strings.HasSuffix(form, "PKCS #1") {
			block = &pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)}
		}
	case *ecdsa.PrivateKey:
		if strings.HasSuffix(form, "SEC 1") {
			block.Type = "EC PRIVATE KEY"
			block.Bytes, err = x509.MarshalECPrivateKey(key)
		}
	}
	if block.Bytes == nil && err == nil {
		block.Bytes, err = x509.MarshalPKCS8PrivateKey(key)
	}
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	put(t, keyFile, pem.EncodeToMemory(block))
	put(t, certFile, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	return certFile, keyFile
}

// put replaces a file by renaming another.
func put(t *testing.T, path string, data []byte) {
	t.Helper()
	if err := os.WriteFile(path+".new", data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// presented is the subject of the certificate that a program presents to a client that sends a server name, or none.
func presented(t *testing.T, p *program, name string) string {
	t.Helper()
	c, err := tls.Dial("tcp", strings.TrimPrefix(p.config.Host, "https://"), &tls.Config{ServerName: name, InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName
}

// TestServingCertificates: clients get the certificate of the flags by the name that they ask for, in each form of key, and another one as
// soon as the files have it; the kubeconfig and the names of the Service kubernetes go on with the cluster's own CA.
func TestServingCertificates(t *testing.T) {
	t.Parallel()
	authority := newSigner(t, "corporate")
	certFile, keyFile := authority.server(t, "RSA PKCS #1", "first", "api.example", "127.0.0.1")
	sniCert, sniKey := authority.server(t, "ECDSA PKCS #8", "named", "named.example")
	p := up(t, t.TempDir(), "--node", "none", "--controllers", "none", "--log-level", "info", "--tls-cert-file", certFile,
		"--tls-private-key-file", keyFile, "--tls-sni-cert-key", sniCert+","+sniKey+":sni.example,*.wild.example")
	for name, want := range map[string]string{
		"api.example": "first", "": "first", "sni.example": "named", "a.wild.example": "named", "kubernetes.default.svc": "kube-apiserver",
		"localhost": "kube-apiserver",
	} {
		if got := presented(t, p, name); got != want {
			t.Errorf("a client of %q gets the certificate of %s, want %s", name, got, want)
		}
	}
	readByOwnCA(t, p)
	p.kubectl("get", "namespaces") // by the kubeconfig

	for i, form := range []string{"RSA PKCS #8", "ECDSA SEC 1", "ECDSA PKCS #8", "Ed25519 PKCS #8"} {
		name := "turn-" + string(rune('a'+i))
		newCert, newKey := authority.server(t, form, name, "api.example")
		for from, to := range map[string]string{newKey: keyFile, newCert: certFile} {
			data, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			put(t, to, data)
		}
		p.says(`subject="CN=` + name + `"`)
		if got := presented(t, p, "api.example"); got != name {
			t.Errorf("%s: got the certificate of %s, want %s", form, got, name)
		}
	}
	put(t, sniKey, []byte("nonsense"))
	p.says("Could not reload the serving certificates")
	if got := presented(t, p, "sni.example"); got != "named" {
		t.Errorf("after a bad file the certificate of %s is in force, want that of named", got)
	}

	client := rest.AnonymousClientConfig(p.config)
	client.CAData, client.CAFile, client.ServerName = nil, authority.file, "api.example"
	if _, err := kubernetes.NewForConfigOrDie(client).Discovery().ServerVersion(); err != nil {
		t.Errorf("a client of another CA: %v", err)
	}
}

// readByOwnCA reads as a pod does that trusts the cluster's own CA.
func readByOwnCA(t *testing.T, p *program) {
	t.Helper()
	client := rest.CopyConfig(p.config)
	client.ServerName = "kubernetes.default.svc"
	if _, err := kubernetes.NewForConfigOrDie(client).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a client by the name kubernetes.default.svc: %v", err)
	}
}

// TestCertDir: the server writes its own pair into an empty directory, finds it again, and takes the pair of somebody else from there.
func TestCertDir(t *testing.T) {
	t.Parallel()
	dir, data := filepath.Join(t.TempDir(), "certs"), t.TempDir()
	certFile, keyFile := filepath.Join(dir, "apiserver.crt"), filepath.Join(dir, "apiserver.key")
	args := []string{"--node", "none", "--controllers", "none", "--log-level", "info", "--cert-dir", dir}
	p := up(t, data, args...)
	for path, want := range map[string]os.FileMode{certFile: 0o644, keyFile: 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: error %v, mode %v, want %v", path, err, info.Mode(), want)
		}
	}
	client := rest.AnonymousClientConfig(p.config)
	client.CAData, client.CAFile, client.ServerName = nil, certFile, "" // as upstream's fixtures do
	if _, err := kubernetes.NewForConfigOrDie(client).Discovery().ServerVersion(); err != nil {
		t.Errorf("a client that trusts the generated file: %v", err)
	}
	p.stop()
	p = up(t, data, args...)
	newCert, newKey := newSigner(t, "corporate").server(t, "ECDSA SEC 1", "theirs", "127.0.0.1")
	for from, to := range map[string]string{newKey: keyFile, newCert: certFile} {
		text, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		put(t, to, text)
	}
	p.says(`subject="CN=theirs"`)
	p.stop()
	p = up(t, data, args...)
	if got := presented(t, p, ""); got != "theirs" {
		t.Errorf("the server presents the certificate of %s, want that of the directory", got)
	}
	p.kubectl("get", "namespaces")
}

// TestPodsTrustAnotherCA: with --root-ca-file, clients in the cluster get the certificate of the flags, too.
func TestPodsTrustAnotherCA(t *testing.T) {
	t.Parallel()
	authority := newSigner(t, "corporate")
	certFile, keyFile := authority.server(t, "ECDSA SEC 1", "theirs", "kubernetes.default.svc", "127.0.0.1")
	p := up(t, t.TempDir(), "--node", "none", "--tls-cert-file", certFile, "--tls-private-key-file", keyFile, "--root-ca-file", authority.file)
	for _, name := range []string{"", "kubernetes.default.svc", "localhost"} {
		if got := presented(t, p, name); got != "theirs" {
			t.Errorf("a client of %q gets the certificate of %s", name, got)
		}
	}
	readByOwnCA(t, p) // the kubeconfig trusts both
	p.kubectl("get", "namespaces")
}

// TestWrongServingFlags: certificates and versions that the server cannot serve end it, with the flag in the error.
func TestWrongServingFlags(t *testing.T) {
	t.Parallel()
	authority := newSigner(t, "corporate")
	certFile, keyFile := authority.server(t, "ECDSA SEC 1", "a", "a.example")
	_, otherKey := authority.server(t, "ECDSA SEC 1", "b", "b.example")
	half := t.TempDir()
	put(t, filepath.Join(half, "apiserver.crt"), []byte("x"))
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--tls-cert-file", certFile}, "--tls-cert-file and --tls-private-key-file: one is of no use without the other"},
		{[]string{"--tls-cert-file", certFile, "--tls-private-key-file", otherKey}, "--tls-cert-file: " + certFile + " and " + otherKey},
		{[]string{"--cert-dir", half}, "--cert-dir: " + half},
		{[]string{"--tls-sni-cert-key", certFile},
			"--tls-sni-cert-key " + certFile + ": expected comma separated certificate and key file paths"},
		{[]string{"--tls-sni-cert-key", certFile + "," + keyFile + ":"}, "empty names list is not allowed"},
		{[]string{"--tls-sni-cert-key", certFile + "," + keyFile + "x"}, "read key"},
		{[]string{"--emulated-version", "1.36"},
			"--emulated-version 1.36 is not supported: this server is Kubernetes 1.37.1 and supports kube=1.37 only"},
		{[]string{"--emulated-version", "wardle=1.37"}, `--emulated-version wardle=1.37: unknown component "wardle": want kube=1.37`},
		{[]string{"--emulated-version", "new"}, "--emulated-version new is not supported"},
		{[]string{"--min-compatibility-version", "kube=1.35"}, "--min-compatibility-version kube=1.35 is not supported"},
	} {
		p := launch(t, t.TempDir(), append(slices.Clone(c.args), "--node", "none", "--controllers", "none")...)
		err := <-p.exited
		p.exited <- err
		if err == nil || !strings.Contains(p.output.String(), c.want) {
			t.Errorf("%v: ended with %v, want an error with %s; said:\n%s", c.args, err, c.want, p.output)
		}
	}
	p := up(t, t.TempDir(), "--node", "none", "--controllers", "none", "--emulated-version", "kube=1.37", "--min-compatibility-version",
		"1.36",
		"--emulation-forward-compatible", "--runtime-config-emulation-forward-compatible=true")
	if v, err := p.client().Discovery().ServerVersion(); err != nil || v.EmulationMinor != "37" {
		t.Errorf("the version is %v, error %v", v, err)
	}
}

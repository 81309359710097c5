// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package opa

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/test/programs"
)

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m, programs.Mortise, programs.Program{In: ".", Name: "opa", Package: "github.com/open-policy-agent/opa"}))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// agent is an OPA server with a policy. It is reached over TLS with a certificate for 127.0.0.1.
type agent struct {
	*programs.Process
	t   *testing.T
	URL string // https://127.0.0.1:PORT
	CA  []byte // PEM, of its certificate
}

// serve starts an agent with a policy in Rego.
func serve(t *testing.T, rego string) *agent {
	t.Helper()
	dir := t.TempDir()
	cert, key := certificate(t)
	for name, data := range map[string][]byte{"policy.rego": []byte(rego), "cert.pem": cert, "key.pem": key} {
		must(t, os.WriteFile(filepath.Join(dir, name), data, 0o600))
	}
	address := net.JoinHostPort("127.0.0.1", programs.FreePort(t)) // the agent does not tell which port it takes
	p := programs.Start(t, nil, "opa", "run", "--server", "--addr", address, "--log-format", "json", "--log-level", "debug",
		"--skip-version-check", "--tls-cert-file", filepath.Join(dir, "cert.pem"), "--tls-private-key-file", filepath.Join(dir, "key.pem"),
		filepath.Join(dir, "policy.rego"))
	p.Await(regexp.MustCompile(`Server initialized\.`))
	p.Listening(address)
	return &agent{Process: p, t: t, URL: "https://" + address, CA: cert}
}

// Decision is the address at which a rule answers what is posted to it: the question is the rule's input, its value the answer.
func (a *agent) Decision(rule string) string {
	return a.URL + "/v0/data/" + strings.ReplaceAll(rule, ".", "/")
}

// Kubeconfig is a file by which a webhook's caller finds a rule.
func (a *agent) Kubeconfig(rule string) string {
	a.t.Helper()
	dir := a.t.TempDir()
	ca, path := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "kubeconfig")
	must(a.t, os.WriteFile(ca, a.CA, 0o600))
	must(a.t, os.WriteFile(path, fmt.Appendf(nil, `apiVersion: v1
kind: Config
clusters: [{name: opa, cluster: {server: "%s", certificate-authority: "%s"}}]
users: [{name: mortise, user: {}}]
contexts: [{name: opa, context: {cluster: opa, user: mortise}}]
current-context: opa
`, a.Decision(rule), ca), 0o600))
	return path
}

// certificate is a self-signed one for 127.0.0.1.
func certificate(t *testing.T) (cert, key []byte) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "opa"}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter:    time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, BasicConstraintsValid: true, IsCA: true,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &k.PublicKey, k)
	must(t, err)
	bytes, err := x509.MarshalECPrivateKey(k)
	must(t, err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: bytes})
}

// server is a `mortise up` without controllers and node, and an administrator's way to it.
type server struct {
	*programs.Cluster
	url    string
	client *http.Client
}

// up starts a server with further flags.
func up(t *testing.T, flags ...string) *server {
	t.Helper()
	c := programs.Up(t, append([]string{"--node", "none", "--controllers", "none"}, flags...)...)
	data, url := filepath.Join(c.Home, "data"), c.Await(regexp.MustCompile(`mortise: ready in .*(https://[0-9.:]+),`))[1]
	pair, err := tls.LoadX509KeyPair(filepath.Join(data, "pki", "admin.crt"), filepath.Join(data, "pki", "admin.key"))
	must(t, err)
	ca, err := os.ReadFile(filepath.Join(data, "pki", "ca.crt"))
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &server{Cluster: c, url: url, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}},
	}}}
}

// do says a request as a user (empty: the administrator), and returns the code and the answer.
func (s *server) do(user, method, path, body string) (int, string) {
	s.T.Helper()
	r, err := http.NewRequestWithContext(s.T.Context(), method, s.url+path, strings.NewReader(body))
	must(s.T, err)
	r.Header.Set("Content-Type", "application/json")
	if user != "" {
		r.Header.Set("Impersonate-User", user)
	}
	answer, err := s.client.Do(r)
	must(s.T, err)
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	must(s.T, err)
	return answer.StatusCode, string(said)
}

// metric is the value of a metric by its name and labels, as /metrics writes them; 0 if it is not there.
func (s *server) metric(name string) (v float64) {
	s.T.Helper()
	_, all := s.do("", "GET", "/metrics", "")
	for l := range strings.Lines(all) {
		if rest, ok := strings.CutPrefix(l, name+" "); ok {
			if _, err := fmt.Sscan(rest, &v); err != nil {
				s.T.Fatalf("read metric %q: %v", l, err)
			}
		}
	}
	return v
}

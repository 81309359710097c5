// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package opa

import (
	"bufio"
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
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// programs are what the tests run, built once.
var programs struct{ mortise, opa string }

func TestMain(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "mortise-opa-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		programs.mortise, programs.opa = filepath.Join(dir, "mortise"), filepath.Join(dir, "opa")
		for _, b := range []struct{ in, out, what string }{{filepath.Join("..", ".."), programs.mortise, "./cmd/mortise"},
			{".", programs.opa, "github.com/open-policy-agent/opa"}} {
			build := exec.Command("go", "build", "-tags", "grpcnotrace", "-o", b.out, b.what)
			build.Dir, build.Env = b.in, append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "build %s: %v\n%s", b.what, err, out)
				return 1
			}
		}
		return m.Run()
	}())
}

// process is a program that runs, with what it says on standard error.
type process struct {
	t    *testing.T
	cmd  *exec.Cmd
	gone chan struct{} // closed when it has ended

	mu    sync.Mutex
	lines []string
	heard chan struct{}
}

func start(t *testing.T, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program, args...), gone: make(chan struct{}), heard: make(chan struct{}, 1)}
	stderr, err := p.cmd.StderrPipe()
	must(t, err)
	must(t, p.cmd.Start())
	go func() {
		for s := bufio.NewScanner(stderr); s.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, s.Text())
			p.mu.Unlock()
			p.wake()
		}
		_ = p.cmd.Wait() // how it ended is in what it said
		close(p.gone)
		p.wake()
	}()
	t.Cleanup(p.stop)
	return p
}

func (p *process) wake() {
	select {
	case p.heard <- struct{}{}:
	default:
	}
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	<-p.gone
}

// await waits for a line that has all parts.
func (p *process) await(parts ...string) string {
	p.t.Helper()
	late := time.After(time.Minute)
	for {
		p.mu.Lock()
		said := append([]string(nil), p.lines...)
		p.mu.Unlock()
	line:
		for _, l := range said {
			for _, part := range parts {
				if !strings.Contains(l, part) {
					continue line
				}
			}
			return l
		}
		select {
		case <-p.gone:
			p.t.Fatalf("%s ended before it said %q:\n%s", p.cmd.Path, parts, strings.Join(said, "\n"))
		case <-late:
			p.t.Fatalf("%s did not say %q:\n%s", p.cmd.Path, parts, strings.Join(said, "\n"))
		case <-p.heard:
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// agent is an OPA server with a policy. It is reached over TLS with a certificate for 127.0.0.1.
type agent struct {
	*process
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
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free: the agent does not tell which it takes
	must(t, err)
	address := l.Addr().String()
	must(t, l.Close())
	p := start(t, programs.opa, "run", "--server", "--addr", address, "--log-format", "json", "--log-level", "debug", "--skip-version-check",
		"--tls-cert-file", filepath.Join(dir, "cert.pem"), "--tls-private-key-file", filepath.Join(dir, "key.pem"),
		filepath.Join(dir, "policy.rego"))
	p.await("Server initialized.")
	for until := time.Now().Add(10 * time.Second); ; { // it says so a moment before it listens
		c, err := net.Dial("tcp", address)
		if err == nil {
			must(t, c.Close())
			break
		}
		if time.Now().After(until) {
			t.Fatal(err)
		}
	}
	return &agent{process: p, URL: "https://" + address, CA: cert}
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
	*process
	url    string
	client *http.Client
}

// up starts a server with further flags.
func up(t *testing.T, flags ...string) *server {
	t.Helper()
	data := filepath.Join(t.TempDir(), "data")
	p := start(t, programs.mortise, append([]string{"up", "--data-dir", data, "--listen", "127.0.0.1:0", "--node", "none", "--controllers",
		"none"}, flags...)...)
	_, ready, _ := strings.Cut(p.await("mortise: ready in "), "https://") // …, https://HOST:PORT, …
	host, _, _ := strings.Cut(ready, ",")
	pair, err := tls.LoadX509KeyPair(filepath.Join(data, "pki", "admin.crt"), filepath.Join(data, "pki", "admin.key"))
	must(t, err)
	ca, err := os.ReadFile(filepath.Join(data, "pki", "ca.crt"))
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &server{process: p, url: "https://" + host, client: &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}},
	}}}
}

// do says a request as a user (empty: the administrator), and returns the code and the answer.
func (s *server) do(user, method, path, body string) (int, string) {
	s.t.Helper()
	r, err := http.NewRequestWithContext(s.t.Context(), method, s.url+path, strings.NewReader(body))
	must(s.t, err)
	r.Header.Set("Content-Type", "application/json")
	if user != "" {
		r.Header.Set("Impersonate-User", user)
	}
	answer, err := s.client.Do(r)
	must(s.t, err)
	defer answer.Body.Close()
	said, err := io.ReadAll(answer.Body)
	must(s.t, err)
	return answer.StatusCode, string(said)
}

// metric is the value of a metric by its name and labels, as /metrics writes them; 0 if it is not there.
func (s *server) metric(name string) (v float64) {
	s.t.Helper()
	_, all := s.do("", "GET", "/metrics", "")
	for l := range strings.Lines(all) {
		if rest, ok := strings.CutPrefix(l, name+" "); ok {
			if _, err := fmt.Sscan(rest, &v); err != nil {
				s.t.Fatalf("read metric %q: %v", l, err)
			}
		}
	}
	return v
}

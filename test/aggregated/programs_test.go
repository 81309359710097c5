// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"flag"
	"fmt"
	"math/big"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// limit is how long anything may take.
const limit = time.Minute

// patience is how long a program may take to end that was told to.
const patience = 2 * time.Second

// programs are what the tests run, by name, built once into a folder.
var programs struct{ dir string }

// program is the file of one of them.
func program(name string) string { return filepath.Join(programs.dir, name) }

func TestMain(m *testing.M) {
	os.Exit(func() int {
		built := flag.String("programs", "", "a folder that has the programs already; empty: they are built")
		flag.Parse()
		if *built != "" {
			programs.dir = *built
			return m.Run()
		}
		dir, err := os.MkdirTemp("", "mortise-aggregated-")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(dir)
		programs.dir = dir
		for _, b := range []struct{ in, name, pkg string }{
			{filepath.Join("..", ".."), "mortise", "./cmd/mortise"},
			{filepath.Join("..", ".."), "example", "./examples/aggregated"},
			{filepath.Join("..", ".."), "metrics", "./examples/aggregated/metrics"},
			{".", "etcd", "go.etcd.io/etcd/server/v3"},
			{".", "sample-apiserver", "k8s.io/sample-apiserver"},
			{".", "test-adapter", "sigs.k8s.io/custom-metrics-apiserver/test-adapter"},
			{".", "metrics-server", "sigs.k8s.io/metrics-server/cmd/metrics-server"},
		} {
			build := exec.Command("go", "build", "-tags", "grpcnotrace", "-o", program(b.name), b.pkg)
			build.Dir, build.Env = b.in, append(os.Environ(), "CGO_ENABLED=0")
			if out, err := build.CombinedOutput(); err != nil {
				fmt.Fprintf(os.Stderr, "build %s: %v\n%s", b.pkg, err, out)
				return 1
			}
		}
		return m.Run()
	}())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// process is a program that runs.
type process struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{}

	mu    sync.Mutex
	said  bytes.Buffer
	heard chan struct{} // holds one when it said something
}

// Write takes what the program says.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said.Write(b)
	select {
	case p.heard <- struct{}{}:
	default:
	}
	return len(b), nil
}

func (p *process) all() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// start runs a program until the test ends.
func start(t *testing.T, env []string, name string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program(name), args...), ended: make(chan struct{}), heard: make(chan struct{}, 1)}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = p, p, append(os.Environ(), env...)
	must(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // how it ended is in what it said
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			said := p.all()
			t.Logf("%s said:\n%s", name, said[max(0, len(said)-6000):])
		}
	})
	return p
}

func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// await waits until the program has said something.
func (p *process) await(what *regexp.Regexp) []string {
	p.t.Helper()
	late := time.After(limit)
	for {
		if m := what.FindStringSubmatch(p.all()); m != nil {
			return m
		}
		select {
		case <-p.heard:
		case <-p.ended:
			p.t.Fatalf("%s ended before it said %q", p.cmd.Path, what)
		case <-late:
			p.t.Fatalf("%s did not say %q", p.cmd.Path, what)
		}
	}
}

// port is one of this machine that nobody listens at.
func port(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer l.Close()
	_, p, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	return p
}

// cluster is a Mortise.
type cluster struct {
	t          *testing.T
	kubeconfig string
	home       string // kubectl's
	*process
}

func up(t *testing.T, args ...string) *cluster {
	t.Helper()
	dir := t.TempDir()
	c := &cluster{t: t, kubeconfig: filepath.Join(dir, "kubeconfig"), home: dir}
	c.process = start(t, nil, "mortise", append([]string{"up", "--data-dir", filepath.Join(dir, "data"), "--kubeconfig", c.kubeconfig,
		"--listen", "127.0.0.1:0"}, args...)...)
	c.await(regexp.MustCompile(`(?m)^mortise: ready in `))
	return c
}

// in is the cluster for a subtest, which fails by itself.
func (c *cluster) in(t *testing.T) *cluster {
	sub := *c
	sub.t = t
	return &sub
}

// kubectl runs kubectl to its end.
func (c *cluster) kubectl(input string, args ...string) (string, error) {
	cmd := c.command(args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (c *cluster) command(args ...string) *exec.Cmd {
	cmd := exec.Command(program("mortise"), append([]string{"kubectl"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.kubeconfig, "HOME="+c.home)
	return cmd
}

// do is kubectl where it must not fail.
func (c *cluster) do(input string, args ...string) string {
	c.t.Helper()
	out, err := c.kubectl(input, args...)
	if err != nil {
		c.t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

// refused is kubectl where it must fail and say why.
func (c *cluster) refused(input, why string, args ...string) {
	c.t.Helper()
	out, err := c.kubectl(input, args...)
	if err == nil || !strings.Contains(out, why) {
		c.t.Errorf("kubectl %s: error %v, not about %q:\n%s", strings.Join(args, " "), err, why, out)
	}
}

// eventually runs kubectl until it says something: documents of other servers are fetched in the background.
func (c *cluster) eventually(want string, args ...string) string {
	c.t.Helper()
	return c.until(func(out string, _ error) bool { return strings.Contains(out, want) }, args...)
}

// discovered waits until kubectl finds a resource, and nothing is stale.
func (c *cluster) discovered(resource string) {
	c.t.Helper()
	c.until(func(out string, err error) bool { return err == nil && strings.Contains(out, resource) }, "api-resources", "--cached=false")
}

// until runs kubectl until it says what is wanted.
func (c *cluster) until(wanted func(out string, err error) bool, args ...string) string {
	c.t.Helper()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for late := time.After(limit); ; {
		out, err := c.kubectl("", args...)
		if wanted(out, err) {
			return out
		}
		select {
		case <-look.C:
		case <-late:
			c.t.Fatalf("kubectl %s never says what is wanted; last: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// certificate makes an authority and files of a certificate for a Service of the namespace default.
func certificate(t *testing.T, service string) (ca []byte, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	must(t, err)
	cert := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: service}, DNSNames: []string{service + ".default.svc", "localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, cert, &key.PublicKey, key)
	must(t, err)
	ca = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	der, err = x509.MarshalECPrivateKey(key)
	must(t, err)
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	must(t, os.WriteFile(certFile, ca, 0o600))
	must(t, os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600))
	return ca, certFile, keyFile
}

// register puts a process of this machine behind a Service, and group versions (VERSION.GROUP) behind that, and waits until they are
// available.
func (c *cluster) register(service, port string, ca []byte, versions ...string) {
	c.t.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {namespace: default, name: %s}\nspec: {type: ExternalName, externalName: localhost, ports: [{port: %s}]}\n", service, port)
	for i, v := range versions {
		version, group, _ := strings.Cut(v, ".")
		fmt.Fprintf(&b, "---\napiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: %s}\n", v)
		fmt.Fprintf(&b, "spec: {group: %s, version: %s, groupPriorityMinimum: 1000, versionPriority: %d, caBundle: %s, service: {namespace: default, name: %s, port: %s}}\n",
			group, version, 100-i, base64.StdEncoding.EncodeToString(ca), service, port)
	}
	c.do(b.String(), "apply", "-f", "-")
	for _, v := range versions {
		c.do("", "wait", "--for=condition=Available", "--timeout=60s", "apiservice/"+v)
	}
}

// look has the server behind a Service looked at now, by a change of the Service: else that comes within half a minute.
func (c *cluster) look(name string) {
	c.t.Helper()
	c.do("", "annotate", "--overwrite", "service/"+name, "looked="+time.Now().Format(time.RFC3339Nano))
}

// as is a kubeconfig with a token in place of the administrator's certificate.
func (c *cluster) as(token string) string {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "kubeconfig")
	text, err := os.ReadFile(c.kubeconfig)
	must(c.t, err)
	must(c.t, os.WriteFile(file, text, 0o600))
	name := strings.TrimSpace(c.do("", "config", "view", "-o", "jsonpath={.contexts[0].context.user}"))
	c.do("", "config", "--kubeconfig", file, "unset", "users")
	c.do("", "config", "--kubeconfig", file, "set-credentials", name, "--token", token)
	return file
}

// delegates are the flags by which a server of k8s.io/apiserver asks the cluster who asks and what they may.
func (c *cluster) delegates() []string {
	return []string{"--authentication-kubeconfig", c.kubeconfig, "--authorization-kubeconfig", c.kubeconfig}
}

// atOnce wants a command not to wait for a server that does not answer, which would take each run 5 s at the least; a busy machine
// delays some.
func (c *cluster) atOnce(args ...string) {
	c.t.Helper()
	best := limit
	for range 5 {
		began := time.Now()
		c.do("", args...)
		if best = min(best, time.Since(began)); best < 5*time.Second {
			return
		}
	}
	c.t.Errorf("kubectl %v takes %v", args, best)
}

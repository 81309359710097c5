// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/test/programs"
)

// limit is how long anything may take.
const limit = programs.Limit

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m,
		programs.Mortise,
		programs.Program{In: programs.Mortise.In, Name: "example", Package: "./examples/aggregated"},
		programs.Program{In: programs.Mortise.In, Name: "metrics", Package: "./examples/aggregated/metrics"},
		programs.Program{In: ".", Name: "etcd", Package: "go.etcd.io/etcd/server/v3"},
		programs.Program{In: ".", Name: "sample-apiserver", Package: "k8s.io/sample-apiserver"},
		programs.Program{In: ".", Name: "test-adapter", Package: "sigs.k8s.io/custom-metrics-apiserver/test-adapter"},
		programs.Program{In: ".", Name: "metrics-server", Package: "sigs.k8s.io/metrics-server/cmd/metrics-server"},
	))
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// cluster is a Mortise.
type cluster struct{ *programs.Cluster }

func up(t *testing.T, args ...string) *cluster {
	t.Helper()
	return &cluster{programs.Up(t, args...)}
}

// in is the cluster for a subtest, which fails by itself.
func (c *cluster) in(t *testing.T) *cluster { return &cluster{c.In(t)} }

// refused is kubectl where it must fail and say why.
func (c *cluster) refused(input, why string, args ...string) {
	c.T.Helper()
	out, err := c.Kubectl(input, args...)
	if err == nil || !strings.Contains(out, why) {
		c.T.Errorf("kubectl %s: error %v, not about %q:\n%s", strings.Join(args, " "), err, why, out)
	}
}

// eventually runs kubectl until it says something: documents of other servers are fetched in the background.
func (c *cluster) eventually(want string, args ...string) string {
	c.T.Helper()
	return c.until(func(out string, _ error) bool { return strings.Contains(out, want) }, args...)
}

// discovered waits until kubectl finds a resource, and nothing is stale.
func (c *cluster) discovered(resource string) {
	c.T.Helper()
	c.until(func(out string, err error) bool { return err == nil && strings.Contains(out, resource) }, "api-resources", "--cached=false")
}

// until runs kubectl until it says what is wanted.
func (c *cluster) until(wanted func(out string, err error) bool, args ...string) string {
	c.T.Helper()
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for late := time.After(limit); ; {
		out, err := c.Kubectl("", args...)
		if wanted(out, err) {
			return out
		}
		select {
		case <-look.C:
		case <-late:
			c.T.Fatalf("kubectl %s never says what is wanted; last: %v\n%s", strings.Join(args, " "), err, out)
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
	c.T.Helper()
	var b strings.Builder
	fmt.Fprintf(&b, "apiVersion: v1\nkind: Service\nmetadata: {namespace: default, name: %s}\nspec: {type: ExternalName, externalName: localhost, ports: [{port: %s}]}\n", service, port)
	for i, v := range versions {
		version, group, _ := strings.Cut(v, ".")
		fmt.Fprintf(&b, "---\napiVersion: apiregistration.k8s.io/v1\nkind: APIService\nmetadata: {name: %s}\n", v)
		fmt.Fprintf(&b, "spec: {group: %s, version: %s, groupPriorityMinimum: 1000, versionPriority: %d, caBundle: %s, service: {namespace: default, name: %s, port: %s}}\n",
			group, version, 100-i, base64.StdEncoding.EncodeToString(ca), service, port)
	}
	c.Do(b.String(), "apply", "-f", "-")
	for _, v := range versions {
		c.Do("", "wait", "--for=condition=Available", "--timeout=60s", "apiservice/"+v)
	}
}

// look has the server behind a Service looked at now, by a change of the Service: else that comes within half a minute.
func (c *cluster) look(name string) {
	c.T.Helper()
	c.Do("", "annotate", "--overwrite", "service/"+name, "looked="+time.Now().Format(time.RFC3339Nano))
}

// as is a kubeconfig with a token in place of the administrator's certificate.
func (c *cluster) as(token string) string {
	c.T.Helper()
	file := filepath.Join(c.T.TempDir(), "kubeconfig")
	text, err := os.ReadFile(c.Kubeconfig)
	must(c.T, err)
	must(c.T, os.WriteFile(file, text, 0o600))
	name := strings.TrimSpace(c.Do("", "config", "view", "-o", "jsonpath={.contexts[0].context.user}"))
	c.Do("", "config", "--kubeconfig", file, "unset", "users")
	c.Do("", "config", "--kubeconfig", file, "set-credentials", name, "--token", token)
	return file
}

// delegates are the flags by which a server of k8s.io/apiserver asks the cluster who asks and what they may.
func (c *cluster) delegates() []string {
	return []string{"--authentication-kubeconfig", c.Kubeconfig, "--authorization-kubeconfig", c.Kubeconfig}
}

// atOnce wants a command not to wait for a server that does not answer, which would take each run 5 s at the least; a busy machine
// delays some.
func (c *cluster) atOnce(args ...string) {
	c.T.Helper()
	best := limit
	for range 5 {
		began := time.Now()
		c.Do("", args...)
		if best = min(best, time.Since(began)); best < 5*time.Second {
			return
		}
	}
	c.T.Errorf("kubectl %v takes %v", args, best)
}

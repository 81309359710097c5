// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/test/programs"
)

// asEtcd starts a server with a store in its data directory, which it serves by etcd's protocol. It returns the URL of that, and the flags
// of etcdctl that name the certificates.
func asEtcd(t *testing.T, dir string) (s *server, url string, flags []string) {
	t.Helper()
	at := fmt.Sprintf("127.%d.%d.%d:2379", 64+rand.IntN(128), rand.IntN(256), 1+rand.IntN(254)) // an address of its own
	s, err := start(t, dir, "--etcd-listen", at, "--advertise-address", "192.0.2.10")
	must(t, err)
	pki := func(name string) string { return filepath.Join(dir, "pki", name) }
	return s, "https://" + at, []string{"--cacert", pki("etcd/ca.crt"), "--cert", pki("apiserver-etcd-client.crt"),
		"--key", pki("apiserver-etcd-client.key")}
}

// TestProtocolPrograms: etcdctl reads, writes and saves the data of a server that keeps them itself, and nobody does without a certificate
// that was made for it.
func TestProtocolPrograms(t *testing.T) {
	dir := t.TempDir()
	s, url, flags := asEtcd(t, dir)
	s.until(t, http.StatusOK, http.MethodGet, "/api/v1/namespaces/default/serviceaccounts/default", "", nil)
	s.create(t, "/api/v1/namespaces/default/configmaps", named("c", map[string]any{"data": map[string]any{"a": "b"}}))
	ctl := func(want string, args ...string) string {
		t.Helper()
		out, err := exec.Command(programs.Path("etcdctl"), append(append([]string{
			"--endpoints", url, "--command-timeout", limit.String()}, flags...),
			args...)...).CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) {
			t.Fatalf("etcdctl %v: %v\n%s\nwant %q", args, err, out, want)
		}
		return string(out)
	}
	ctl("/registry/configmaps/default/c", "get", "--prefix", "/registry/configmaps/default/", "--keys-only")
	ctl("k8s\x00", "get", "/registry/configmaps/default/c", "--print-value-only")
	ctl("OK", "put", "/registry/example.com/a", "1")
	ctl("1\n", "put", "--prev-kv", "/registry/example.com/a", "2")
	ctl("1\n/registry/example.com/a\n2", "del", "--prev-kv", "/registry/example.com/a")
	_, id, _ := strings.Cut(ctl("granted", "lease", "grant", "600"), "lease ")
	id, _, _ = strings.Cut(id, " ")
	ctl("OK", "put", "--lease", id, "/registry/example.com/b", "1")
	ctl("keepalived", "lease", "keep-alive", "--once", id)
	ctl("/registry/example.com/b", "lease", "timetolive", "--keys", id)
	ctl("revoked", "lease", "revoke", id)
	if out := ctl("", "get", "/registry/example.com/b"); out != "" {
		t.Errorf("after the lease was revoked: %s", out)
	}
	ctl("is healthy", "endpoint", "health")
	ctl("3.6.0", "endpoint", "status")
	ctl("mortise", "member", "list")
	snapshot := filepath.Join(t.TempDir(), "snapshot.db")
	ctl("saved", "snapshot", "save", snapshot)
	if out, err := exec.Command(programs.Path("etcdutl"), "snapshot", "restore", snapshot, "--data-dir", filepath.Join(t.TempDir(), "etcd")).
		CombinedOutput(); err != nil {
		t.Errorf("etcdutl: %v\n%s", err, out)
	}
	restored := t.TempDir()
	mortise(t, "store", "import", "--data-dir", restored, "--from", snapshot)
	must(t, os.CopyFS(filepath.Join(restored, "pki"), os.DirFS(filepath.Join(dir, "pki"))))
	// What etcdctl writes counts at the server, and its watches.
	ctl("1", "del", "/registry/configmaps/default/c")
	s.until(t, http.StatusNotFound, http.MethodGet, "/api/v1/namespaces/default/configmaps/c", "", nil)
	ctl("compacted", "compact", fmt.Sprint(revisionOf(t, s)))
	back, err := start(t, restored)
	must(t, err)
	back.until(t, http.StatusOK, http.MethodGet, "/api/v1/namespaces/default/configmaps/c", "", nil)

	text, err := os.ReadFile(flags[1])
	must(t, err)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(text)
	for name, answered := range map[string]bool{"": false, "admin": false, "apiserver-etcd-client": true} {
		config := &tls.Config{RootCAs: roots, NextProtos: []string{"h2"}}
		if name != "" {
			pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "pki", name+".crt"), filepath.Join(dir, "pki", name+".key"))
			must(t, err)
			config.Certificates = []tls.Certificate{pair}
		}
		c, err := tls.Dial("tcp", strings.TrimPrefix(url, "https://"), config)
		if err == nil { // the server refuses a certificate after the client's part of the handshake
			must(t, c.SetDeadline(time.Now().Add(limit)))
			_, err = c.Read(make([]byte, 1))
			c.Close()
		}
		if (err == nil) != answered {
			t.Errorf("with the certificate %q: %v", name, err)
		}
	}
	for wrong, says := range map[string]string{"unix://relative": "absolute path", "http://127.0.0.1:2379": "want unix://PATH or HOST:PORT"} {
		if _, err := start(t, t.TempDir(), "--etcd-listen", wrong); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("--etcd-listen %s: %v", wrong, err)
		}
	}
}

// revisionOf returns the revision of a list.
func revisionOf(t *testing.T, s *server) any {
	t.Helper()
	_, list := s.ask(t, http.MethodGet, "/api/v1/namespaces/default/configmaps", "", nil)
	return field(list, "metadata", "resourceVersion")
}

// TestProtocolKubeAPIServer: a kube-apiserver serves the data of a server that keeps them itself, while that server serves them, and after
// it: both show the same objects, and each sees what the other writes.
func TestProtocolKubeAPIServer(t *testing.T) {
	binary := kubeAPIServer(t)
	dir := t.TempDir()
	m, url, flags := asEtcd(t, dir)
	m.until(t, http.StatusOK, http.MethodGet, "/api/v1/namespaces/default/serviceaccounts/default", "", nil)
	definition(t, m)
	fill(t, m, "a-")
	u := upstream(t, &members{urls: []string{url}}, dir, binary, m,
		"--etcd-cafile", flags[1], "--etcd-certfile", flags[3], "--etcd-keyfile", flags[5])
	same(t, m, u)
	fill(t, u, "b-")
	fill(t, m, "c-")
	same(t, m, u)
	unique(t, m, u)
}

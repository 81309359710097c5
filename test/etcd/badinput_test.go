// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// secured returns a member with TLS that accepts clients of an authority, and shows a certificate of its own authority.
func secured(t *testing.T, a *authority, name string, change ...func(*x509.Certificate)) *members {
	t.Helper()
	c := unstarted(t, 1, "--client-cert-auth", "--trusted-ca-file", a.file("ca.crt"), "--cert-file", a.file(name+".crt"),
		"--key-file", a.file(name+".key"))
	t.Cleanup(c.remove)
	c.urls[0] = strings.Replace(c.urls[0], "http://", "https://", 1)
	u, err := url.Parse(c.urls[0])
	must(t, err)
	a.sign(t, name, u.Hostname(), change...)
	c.start(t, 0)
	return c
}

// TestCertificatesAtStart: a server whose certificates or URLs do not fit etcd's ends at once, says why, and which flag mends it.
func TestCertificatesAtStart(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	a.sign(t, "client", "")
	other.sign(t, "client", "")
	expired := func(c *x509.Certificate) {
		c.NotBefore, c.NotAfter = time.Now().Add(-2*time.Hour), time.Now().Add(-time.Hour)
	}
	a.sign(t, "old", "", expired)
	good, plain := secured(t, a, "member"), launch(t, 1)
	defer plain.remove()
	late := secured(t, a, "late", expired)
	elsewhere := secured(t, a, "elsewhere", func(c *x509.Certificate) { c.IPAddresses, c.DNSNames = nil, []string{"etcd.example.com"} })
	secure := func(url string) string { return strings.Replace(url, "http://", "https://", 1) }
	for _, c := range []struct{ name, url, ca, cert, says, do string }{
		{"another authority", good.urls[0], other.file("ca.crt"), a.file("client"), "unknown authority", "--etcd-cafile"},
		{"a client of another authority", good.urls[0], a.file("ca.crt"), other.file("client"), "remote error: tls", "--etcd-certfile"},
		{"no client certificate", good.urls[0], a.file("ca.crt"), "", "certificate required", "--etcd-certfile and --etcd-keyfile"},
		{"an expired client certificate", good.urls[0], a.file("ca.crt"), a.file("old"), "old.crt is valid from", "--etcd-certfile"},
		{"no such file", good.urls[0], a.file("none.crt"), a.file("client"), "none.crt", "--etcd-cafile"},
		{"a key for a certificate of authorities", good.urls[0], a.file("client.key"), a.file("client"), "no certificate", "--etcd-cafile"},
		{"an expired member", late.urls[0], a.file("ca.crt"), a.file("client"), "has expired", "renew the certificates of etcd's members"},
		{"a member with another name", elsewhere.urls[0], a.file("ca.crt"), a.file("client"), "cannot validate certificate for",
			"--etcd-servers must name hosts"},
		{"https to a member without TLS", secure(plain.urls[0]), a.file("ca.crt"), a.file("client"), "speaks no TLS",
			"http:// in --etcd-servers"},
		{"http to a member with TLS", secureless(good.urls[0]), "", "", "speaks TLS", "https:// in --etcd-servers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			flags := []string{"--store", "etcd", "--etcd-servers", c.url}
			if c.ca != "" {
				flags = append(flags, "--etcd-cafile", c.ca)
			}
			if c.cert != "" {
				flags = append(flags, "--etcd-certfile", c.cert+".crt", "--etcd-keyfile", c.cert+".key")
			}
			began := time.Now()
			_, err := start(t, t.TempDir(), flags...)
			if err == nil {
				t.Fatal("the server starts")
			}
			text, do, _ := strings.Cut(err.Error(), "mortise: what to do: ")
			if !strings.Contains(text, c.says) || !strings.Contains(do, c.do) {
				t.Errorf("it says %q, not %q and what to do with %q", err, c.says, c.do)
			}
			if took := time.Since(began); took > 15*time.Second {
				t.Errorf("after %v, which is the time to wait for members that come later", took)
			}
		})
	}
}

func secureless(url string) string { return strings.Replace(url, "https://", "http://", 1) }

// TestOtherPrefix: servers with two prefixes keep two clusters in one etcd. The one that finds none of its keys, but others, says so.
func TestOtherPrefix(t *testing.T) {
	c := launch(t, 1).ready(t)
	defer c.remove()
	const path = "/api/v1/namespaces/default/configmaps"
	first := up(t, c, "", "--etcd-prefix", "/first")
	first.create(t, path, named("a", nil))
	second := up(t, c, "")
	for _, part := range []string{"--etcd-prefix must name theirs", "prefix=/registry", "/first/"} {
		if !strings.Contains(second.said, part) {
			t.Errorf("the second one says %q, not %s", second.said, part)
		}
	}
	if code, got := second.ask(t, http.MethodGet, path+"/a", "", nil); code != http.StatusNotFound {
		t.Errorf("the first one's object: %d %v", code, got)
	}
	second.create(t, path, named("a", nil))
	if code, got := first.ask(t, http.MethodDelete, path+"/a", "", nil); code != http.StatusOK {
		t.Errorf("%d %v", code, got)
	}
	if code, got := second.ask(t, http.MethodGet, path+"/a", "", nil); code != http.StatusOK {
		t.Errorf("after its deletion in the first one: %d %v", code, got)
	}
}

// watched follows the events of a path from now on, as "TYPE name" or "ERROR reason".
func (s *server) watched(t *testing.T, path string) <-chan string {
	t.Helper()
	_, list := s.ask(t, http.MethodGet, path+"?limit=1", "", nil)
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet,
		s.url+path+"?watch=1&resourceVersion="+field(list, "metadata", "resourceVersion").(string), nil)
	must(t, err)
	response, err := (&http.Client{Transport: s.client.Transport}).Do(r)
	must(t, err)
	events := make(chan string, 1000)
	go func() { // until the test ends
		defer close(events)
		defer response.Body.Close()
		for all := json.NewDecoder(response.Body); ; {
			var e struct {
				Type   string
				Object map[string]any
			}
			if all.Decode(&e) != nil {
				return
			}
			events <- fmt.Sprint(e.Type, " ", field(e.Object, "metadata", "name"))
		}
	}()
	return events
}

func next(t *testing.T, events <-chan string, want string) {
	t.Helper()
	timeout := time.After(limit)
	for {
		select {
		case got, ok := <-events:
			if got == want {
				return
			}
			if !ok {
				t.Fatalf("the watch has ended before %q", want)
			}
		case <-timeout:
			t.Fatalf("no event %q", want)
		}
	}
}

// TestFullEtcd: on a full etcd a server refuses writes, and says why and what to do; it reads, watches and deletes on. When etcd has space
// again, it writes without a restart.
func TestFullEtcd(t *testing.T) {
	c := launch(t, 1, "--quota-backend-bytes", fmt.Sprint(8<<20)).ready(t)
	defer c.remove()
	s := up(t, c, "")
	const path = "/api/v1/namespaces/default/configmaps"
	events := s.watched(t, path)
	large := map[string]any{"data": map[string]any{"text": strings.Repeat("x", 500<<10)}}
	n := 0
	refused := func() (int, map[string]any) {
		for ; n < 100; n++ {
			if code, got := s.ask(t, http.MethodPost, path, "", named(fmt.Sprint("large-", n), large)); code != http.StatusCreated {
				return code, got
			}
		}
		t.Fatal("etcd takes more than its quota")
		return 0, nil
	}
	code, got := refused()
	message, _ := got["message"].(string)
	if code != http.StatusServiceUnavailable || !strings.Contains(message, "NOSPACE") || !strings.Contains(message, "etcdctl alarm disarm") {
		t.Errorf("the write is refused with %d %v", code, got)
	}
	t.Logf("after %d objects: %s", n, message)
	if code, got := s.ask(t, http.MethodPatch, path+"/large-0", "", nil); code == http.StatusOK {
		t.Errorf("a patch: %v", got)
	}
	if code, list := s.ask(t, http.MethodGet, path, "", nil); code != http.StatusOK || len(list["items"].([]any)) < n {
		t.Errorf("the list: %d, of %d", code, n)
	}
	next(t, events, fmt.Sprint("ADDED large-", n-1))
	for i := range n {
		if code, got := s.ask(t, http.MethodDelete, fmt.Sprintf("%s/large-%d", path, i), "", nil); code != http.StatusOK {
			t.Errorf("delete: %d %v", code, got)
		}
	}
	next(t, events, fmt.Sprint("DELETED large-", n-1))
	if code, got := s.ask(t, http.MethodGet, "/readyz", "", nil); code != http.StatusOK {
		t.Errorf("readyz: %d %v", code, got)
	}

	client := c.client(t)
	defer client.Close()
	status, err := client.Status(t.Context(), c.urls[0])
	must(t, err)
	_, err = client.Compact(t.Context(), status.Header.Revision, clientv3.WithCompactPhysical())
	must(t, err)
	_, err = client.Defragment(t.Context(), c.urls[0])
	must(t, err)
	_, err = client.AlarmDisarm(t.Context(), &clientv3.AlarmMember{})
	must(t, err)
	s.until(t, http.StatusCreated, http.MethodPost, path, "", named("after", nil))
	next(t, events, "ADDED after")
}

// oldEtcd names the environment variable that says where an etcd of an older minor version is. It is built outside of the repository, in
// a module that requires go.etcd.io/etcd/server/v3 v3.5.24:
//
//	go build -o /tmp/etcd-3.5 go.etcd.io/etcd/server/v3
//	MORTISE_TEST_OLD_ETCD=/tmp/etcd-3.5 go test -C test/etcd -run TestOldMember -v .
const oldEtcd = "MORTISE_TEST_OLD_ETCD"

// old runs a test with the older etcd as some members of a cluster. Without that, all members are of one version.
func old(t *testing.T, which ...int) *members {
	t.Helper()
	c := unstarted(t, 3)
	if program := os.Getenv(oldEtcd); program != "" {
		c.old = map[int]string{}
		for _, i := range which {
			c.old[i] = program
		}
	}
	for i := range c.procs {
		c.start(t, i)
	}
	return c.ready(t)
}

// corrupt writes a value that is no object under a key.
func corrupt(t *testing.T, client *clientv3.Client, key string) {
	t.Helper()
	_, err := client.Put(t.Context(), key, "k8s\x00 corrupt")
	must(t, err)
}

// TestCorruptValue: while one value in etcd cannot be decoded, lists that it would be in fail and name its key; all other objects, lists
// and watches are served, also after a restart; and it can be deleted.
func TestCorruptValue(t *testing.T) {
	c := launch(t, 1).ready(t)
	defer c.remove()
	dir := t.TempDir()
	flags := []string{"--store", "etcd", "--etcd-servers", strings.Join(c.urls, ",")}
	s, err := start(t, dir, flags...)
	must(t, err)
	client := c.client(t)
	defer client.Close()
	const core, key = "/api/v1/namespaces/", "/registry/configmaps/default/corrupt"
	s.create(t, core+"default/configmaps", named("fine", nil))
	beside := s.watched(t, core+"kube-public/configmaps")
	corrupt(t, client, key)
	served := func() {
		t.Helper()
		code, got := s.ask(t, http.MethodGet, core+"default/configmaps", "", nil)
		causes, _ := field(got, "details", "causes").([]any)
		if code != http.StatusInternalServerError || got["reason"] != "StorageReadError" || len(causes) != 1 ||
			field(causes[0].(map[string]any), "field") != key || !strings.Contains(fmt.Sprint(got["message"]), key) {
			t.Errorf("the list: %d %v", code, got)
		}
		for _, method := range []string{http.MethodGet, http.MethodDelete} {
			code, got := s.ask(t, method, core+"default/configmaps/corrupt", "", nil)
			if code != http.StatusInternalServerError || got["reason"] != "InternalError" ||
				!strings.Contains(fmt.Sprint(got["message"]), "Key: /configmaps/default/corrupt") {
				t.Errorf("%s it: %d %v", method, code, got)
			}
		}
		for _, path := range []string{"default/configmaps/fine", "kube-public/configmaps", "default/secrets"} {
			if code, got := s.ask(t, http.MethodGet, core+path, "", nil); code != http.StatusOK {
				t.Errorf("%s: %d %v", path, code, got)
			}
		}
		if code, got := s.ask(t, http.MethodGet, "/readyz", "", nil); code != http.StatusOK {
			t.Errorf("readyz: %d %v", code, got)
		}
		_, got = s.ask(t, http.MethodGet, "/metrics", "", nil)
		if !strings.Contains(fmt.Sprint(got["text"]), `apiserver_storage_decode_errors_total{group="",resource="configmaps"}`) {
			t.Error("no metric counts it")
		}
	}
	served()
	s.create(t, core+"default/configmaps", named("more", nil))
	s.create(t, core+"kube-public/configmaps", named("beside", nil))
	next(t, beside, "ADDED beside")
	s.kill()
	s, err = start(t, dir, flags...)
	must(t, err)
	served()
	code, got := s.ask(t, http.MethodDelete, core+"default/configmaps/corrupt?ignoreStoreReadErrorWithClusterBreakingPotential=true", "", nil)
	if code != http.StatusOK {
		t.Errorf("delete it: %d %v", code, got)
	}
	if code, list := s.ask(t, http.MethodGet, core+"default/configmaps", "", nil); code != http.StatusOK || len(list["items"].([]any)) < 2 {
		t.Errorf("the list without it: %d %v", code, list)
	}
}

// TestCorruptValueOfEachKind: a server starts, and serves other objects, on an etcd with a corrupt value of each kind that it uses itself.
func TestCorruptValueOfEachKind(t *testing.T) {
	c := launch(t, 1).ready(t)
	defer c.remove()
	dir := t.TempDir()
	flags := []string{"--store", "etcd", "--etcd-servers", strings.Join(c.urls, ",")}
	s, err := start(t, dir, flags...)
	must(t, err)
	s.create(t, "/api/v1/namespaces/default/configmaps", named("fine", nil))
	s.kill()
	client := c.client(t)
	defer client.Close()
	all, err := client.Get(t.Context(), "/registry/", clientv3.WithPrefix(), clientv3.WithKeysOnly())
	must(t, err)
	kinds := map[string]bool{}
	for _, kv := range all.Kvs {
		kinds[filepath.Dir(string(kv.Key))] = true
	}
	for dir := range kinds {
		corrupt(t, client, dir+"/corrupt")
	}
	s, err = start(t, dir, flags...)
	must(t, err)
	if code, got := s.ask(t, http.MethodGet, "/api/v1/namespaces/default/configmaps/fine", "", nil); code != http.StatusOK {
		t.Errorf("another object: %d %v", code, got)
	}
	s.create(t, "/api/v1/namespaces/default/configmaps", named("more", nil))
	code, got := s.ask(t, http.MethodGet, "/readyz?verbose", "", nil)
	if code != http.StatusInternalServerError || !strings.Contains(fmt.Sprint(got["text"]), "[-]feed/rbac failed") {
		t.Errorf("readyz, which names what decides and cannot read all: %d %v", code, got)
	}
	t.Logf("with a corrupt value of each of %d kinds", len(kinds))
}

// TestOldMember: a server starts on a cluster of which two members are of the older version that [oldEtcd] names, and goes on when the
// leader, and then the only newer one, are killed.
func TestOldMember(t *testing.T) {
	c := old(t, 0, 1)
	defer c.remove()
	s := up(t, c, "")
	const path = "/api/v1/namespaces/default/configmaps"
	events := s.watched(t, path)
	for round := range 3 {
		name := fmt.Sprint("c", round)
		s.until(t, http.StatusCreated, http.MethodPost, path, "", named(name, nil))
		next(t, events, "ADDED "+name)
		if round == 2 {
			break
		}
		killed := 2
		if round == 0 {
			killed = c.leader(t)
		}
		c.kill(killed)
		defer func(i int) { c.kill(i) }(killed)
		s.until(t, http.StatusCreated, http.MethodPost, path, "", named(name+"-after", nil))
		next(t, events, "ADDED "+name+"-after")
		c.start(t, killed)
		c.ready(t)
	}
	client := c.client(t)
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	for i, url := range c.urls {
		status, err := client.Status(ctx, url)
		must(t, err)
		t.Logf("member %d is etcd %s", i, status.Version)
	}
}

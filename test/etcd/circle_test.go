// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortise-dev/mortise/test/programs"
)

// TestHandOverCircle takes a cluster from a data directory to etcd, where kube-apiserver serves and changes it, and back to a data
// directory, with encryption at rest, custom resources of two versions, and events that expire. Nothing differs, resourceVersions included.
func TestHandOverCircle(t *testing.T) {
	binary := kubeAPIServer(t)
	first := t.TempDir()
	sealed := filepath.Join(t.TempDir(), "encryption.yaml")
	must(t, os.WriteFile(sealed, fmt.Appendf(nil, `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets, widgets.example.com]
  providers:
  - secretbox: {keys: [{name: key1, secret: %s}]}
  - identity: {}
`, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte("k"), 32))), 0o600))
	encryption := []string{"--encryption-provider-config", sealed}

	// What controllers make is there, too; then nothing changes any more.
	m, err := start(t, first, encryption...)
	must(t, err)
	m.until(t, http.StatusOK, http.MethodGet, defaultPath+"serviceaccounts/default", "", nil)
	definition(t, m)
	gadgets(t, m)
	fill(t, m, "a-")
	expiring(t, m, "before")
	m.until(t, http.StatusOK, http.MethodGet, defaultPath+"configmaps/kube-root-ca.crt", "", nil)
	m.kill()
	m, err = start(t, first, append(encryption, "--controllers", "none")...)
	must(t, err)
	want := everything(t, m)
	m.kill()

	// To etcd, and kube-apiserver.
	file := filepath.Join(t.TempDir(), "snapshot.db")
	mortise(t, "store", "export", "--data-dir", first, "--to", file)
	c := restored(t, file)
	defer c.remove()
	u := upstream(t, c, first, binary, m, encryption...)
	compare(t, "from a data directory to kube-apiserver", want, everything(t, u))
	secret(t, c)
	fill(t, u, "k-")
	expiring(t, u, "after")
	w := items(t, u, widgetsPath)["default/a-w"]
	w["spec"] = map[string]any{"size": 7, "text": "changed"}
	if code, got := u.ask(t, http.MethodPut, widgetsPath+"/a-w", "", w); code != http.StatusOK {
		t.Fatalf("change a widget: %d %v", code, got)
	}
	want = everything(t, u)
	u.kill()

	// And back.
	back := t.TempDir()
	must(t, os.CopyFS(filepath.Join(back, "pki"), os.DirFS(filepath.Join(first, "pki"))))
	mortise(t, "store", "import", "--data-dir", back, "--bump", "1000",
		"--from", "etcd://"+strings.TrimPrefix(c.urls[0], "http://"))
	m, err = start(t, back, append(encryption, "--controllers", "none")...)
	must(t, err)
	compare(t, "from kube-apiserver to a data directory", want, everything(t, m))
	made := m.create(t, defaultPath+"services", named("new", map[string]any{"spec": map[string]any{"type": "NodePort",
		"ports": []any{map[string]any{"port": 80}}}}))
	for name, o := range want["/api/v1/services"] {
		if field(o, "spec", "clusterIP") == field(made, "spec", "clusterIP") {
			t.Errorf("a new Service has the address of %s", name)
		}
	}
	m.kill()

	// Once more to etcd, which tells when the events expire.
	again := launch(t, 1).ready(t)
	defer again.remove()
	mortise(t, "store", "export", "--data-dir", back, "--to", "etcd://"+strings.TrimPrefix(again.urls[0], "http://"))
	client := again.client(t)
	defer client.Close()
	for _, name := range []string{"before", "after"} {
		got, err := client.Get(t.Context(), "/registry/events/default/"+name)
		must(t, err)
		if len(got.Kvs) != 1 || got.Kvs[0].Lease == 0 {
			t.Fatalf("the event %s is not there, or does not expire: %v", name, got.Kvs)
		}
		lease, err := client.TimeToLive(t.Context(), clientv3.LeaseID(got.Kvs[0].Lease))
		must(t, err)
		if left := time.Duration(lease.TTL) * time.Second; left < 45*time.Minute || left > 64*time.Minute {
			t.Errorf("the event %s expires in %v; it was created with an hour", name, left)
		}
	}
}

// gadgets defines a custom resource of two versions, and creates one in each.
func gadgets(t *testing.T, s *server) {
	t.Helper()
	version := func(name string, storage bool) any {
		return map[string]any{"name": name, "served": true, "storage": storage, "schema": map[string]any{"openAPIV3Schema": map[string]any{
			"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}
	}
	s.create(t, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", named("gadgets.example.com", map[string]any{"spec": map[string]any{
		"group": "example.com", "scope": "Cluster", "names": map[string]any{"plural": "gadgets", "kind": "Gadget"},
		"versions": []any{version("v1", true), version("v1beta1", false)}}}))
	for _, v := range []string{"v1", "v1beta1"} {
		path := "/apis/example.com/" + v + "/gadgets"
		s.until(t, http.StatusOK, http.MethodGet, path, "", nil)
		s.create(t, path, named("made-as-"+v, map[string]any{"apiVersion": "example.com/" + v, "kind": "Gadget",
			"spec": map[string]any{"n": 1.5}}))
	}
}

// expiring creates an event.
func expiring(t *testing.T, s *server, name string) {
	t.Helper()
	s.create(t, defaultPath+"events", map[string]any{"metadata": map[string]any{"name": name}, "reason": "Tried", "message": "m",
		"involvedObject": map[string]any{"kind": "ConfigMap", "name": "c", "namespace": "default"}})
}

// restored is an etcd with the content of a snapshot file.
func restored(t *testing.T, file string) *members {
	t.Helper()
	c := unstarted(t, 1)
	out, err := exec.Command(programs.Path("etcdutl"), "snapshot", "restore", file, "--data-dir", c.data(0), "--name", "m0",
		"--initial-cluster", "m0="+c.peers[0], "--initial-advertise-peer-urls", c.peers[0]).CombinedOutput()
	if err != nil {
		t.Fatalf("etcdutl refuses the file: %v\n%s", err, out)
	}
	c.start(t, 0)
	return c.ready(t)
}

// secret checks that etcd has Secrets sealed.
func secret(t *testing.T, c *members) {
	t.Helper()
	client := c.client(t)
	defer client.Close()
	for _, prefix := range []string{"/registry/secrets/", "/registry/example.com/widgets/"} {
		got, err := client.Get(t.Context(), prefix, clientv3.WithPrefix())
		must(t, err)
		for _, kv := range got.Kvs {
			if !bytes.HasPrefix(kv.Value, []byte("k8s:enc:secretbox:v1:key1:")) {
				t.Errorf("%s is stored as %.30q", kv.Key, kv.Value)
			}
		}
		if len(got.Kvs) == 0 {
			t.Errorf("no keys below %s", prefix)
		}
	}
}

// everything returns all objects of all kinds and versions, but for those that say which servers run, and Mortise's own group, which only
// Mortise serves.
func everything(t *testing.T, s *server) map[string]map[string]map[string]any {
	t.Helper()
	all := map[string]map[string]map[string]any{}
	for _, path := range collections(t, s) {
		if strings.HasSuffix(path, "/componentstatuses") || strings.Contains(path, "mortise.dev") {
			continue
		}
		all[path] = items(t, s, path)
		for name := range all[path] {
			resource := path[strings.LastIndex(path, "/")+1:]
			if name == "default/kubernetes" || strings.HasSuffix(name, ".mortise.dev") ||
				resource == "leases" && strings.HasPrefix(name, "kube-system/apiserver-") {
				delete(all[path], name)
			}
		}
	}
	return all
}

// compare fails a test for each object that differs, is missing or is new.
func compare(t *testing.T, what string, want, got map[string]map[string]map[string]any) {
	t.Helper()
	n := 0
	for path, objects := range want {
		if got[path] == nil {
			t.Errorf("%s: there is no %s", what, path)
			continue
		}
		for _, d := range differences(path, any(toAny(objects)), any(toAny(got[path]))) {
			t.Errorf("%s: %s", what, d)
		}
		n += len(objects)
	}
	t.Logf("%s: %d objects of %d collections compared", what, n, len(want))
}

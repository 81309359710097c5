// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// kubeAPIServer returns the path of a kube-apiserver 1.37, which an environment variable says, or skips the test. It is built outside of
// the repository:
//
//	go build -o /tmp/kube-apiserver k8s.io/kubernetes/cmd/kube-apiserver
//	MORTISE_TEST_KUBE_APISERVER=/tmp/kube-apiserver go test -C test/etcd -run TestHandOver -v .
func kubeAPIServer(t *testing.T) string {
	t.Helper()
	const variable = "MORTISE_TEST_KUBE_APISERVER"
	path := os.Getenv(variable)
	if path == "" {
		t.Skip(variable + " names no kube-apiserver")
	}
	return path
}

// upstream starts a kube-apiserver on an etcd cluster, with the authorities of a data directory of Mortise.
func upstream(t *testing.T, c *members, data, binary string, like *server, flags ...string) *server {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	port := l.Addr().(*net.TCPAddr).Port
	must(t, l.Close())
	pki := func(name string) string { return filepath.Join(data, "pki", name) }
	log, err := os.Create(filepath.Join(t.TempDir(), "kube-apiserver.log"))
	must(t, err)
	s := &server{url: fmt.Sprintf("https://127.0.0.1:%d", port), client: like.client}
	s.proc = exec.Command(binary, append([]string{"--etcd-servers", strings.Join(c.urls, ","), "--secure-port", fmt.Sprint(port),
		"--bind-address", "127.0.0.1",
		"--tls-cert-file", pki("apiserver.crt"), "--tls-private-key-file", pki("apiserver.key"), "--client-ca-file", pki("ca.crt"),
		"--service-account-issuer", "https://kubernetes.default.svc.cluster.local", "--service-account-key-file", pki("sa.key"),
		"--service-account-signing-key-file", pki("sa.key"), "--service-cluster-ip-range", "10.96.0.0/16", "--authorization-mode", "Node,RBAC",
		"--requestheader-client-ca-file", pki("front-proxy-ca.crt"), "--requestheader-allowed-names", "front-proxy-client",
		"--requestheader-extra-headers-prefix", "X-Remote-Extra-", "--requestheader-group-headers", "X-Remote-Group",
		"--requestheader-username-headers", "X-Remote-User", "--advertise-address", "192.0.2.20", "--allow-privileged",
		"--enable-bootstrap-token-auth"}, flags...)...)
	s.proc.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	s.proc.Stdout, s.proc.Stderr = log, log
	must(t, s.proc.Start())
	_ = log.Close()
	t.Cleanup(s.kill)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for {
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/readyz", nil)
		must(t, err)
		response, err := s.client.Do(r)
		if err == nil {
			_, _ = io.Copy(io.Discard, response.Body)
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return s
			}
		}
		if ctx.Err() != nil {
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("kube-apiserver is not ready: %v\n%s", err, text[max(0, len(text)-4000):])
		}
	}
}

// collections returns the paths of all lists that a server has.
func collections(t *testing.T, s *server) (paths []string) {
	t.Helper()
	_, groups := s.ask(t, http.MethodGet, "/apis", "", nil)
	roots := []string{"/api/v1"}
	for _, g := range groups["groups"].([]any) {
		for _, v := range g.(map[string]any)["versions"].([]any) {
			roots = append(roots, "/apis/"+v.(map[string]any)["groupVersion"].(string))
		}
	}
	for _, root := range roots {
		_, list := s.ask(t, http.MethodGet, root, "", nil)
		resources, _ := list["resources"].([]any)
		for _, r := range resources {
			name := r.(map[string]any)["name"].(string)
			if verbs, _ := r.(map[string]any)["verbs"].([]any); slices.Contains(verbs, any("list")) && !strings.Contains(name, "/") {
				paths = append(paths, root+"/"+name)
			}
		}
	}
	return paths
}

// items returns the objects of a list by namespace and name.
func items(t *testing.T, s *server, path string) map[string]map[string]any {
	t.Helper()
	began := time.Now()
	code, list := s.ask(t, http.MethodGet, path, "", nil)
	for code != http.StatusOK && time.Since(began) < limit/2 { // kube-apiserver's cache of a custom kind is not filled at once
		code, list = s.ask(t, http.MethodGet, path, "", nil)
	}
	if code != http.StatusOK {
		t.Fatalf("GET %s: %d %v", path, code, list)
	}
	out := map[string]map[string]any{}
	all, _ := list["items"].([]any)
	for _, item := range all {
		o := item.(map[string]any)
		out[fmt.Sprint(field(o, "metadata", "namespace"), "/", field(o, "metadata", "name"))] = o
	}
	return out
}

// differences compares what two servers show of one object.
func differences(at string, a, b any) (out []string) {
	switch x := a.(type) {
	case map[string]any:
		y, ok := b.(map[string]any)
		if !ok {
			break
		}
		for key := range x {
			out = append(out, differences(at+"."+key, x[key], y[key])...)
		}
		for key := range y {
			if _, ok := x[key]; !ok {
				out = append(out, differences(at+"."+key, nil, y[key])...)
			}
		}
		return out
	case []any:
		y, ok := b.([]any)
		if !ok || len(x) != len(y) {
			break
		}
		for i := range x {
			out = append(out, differences(fmt.Sprintf("%s[%d]", at, i), x[i], y[i])...)
		}
		return out
	}
	if !reflect.DeepEqual(a, b) {
		x, _ := json.Marshal(a)
		y, _ := json.Marshal(b)
		out = append(out, fmt.Sprintf("%s: %.200s, kube-apiserver %.200s", at, x, y))
	}
	return out
}

// same compares all objects of two servers on one etcd.
func same(t *testing.T, mortise, upstream *server) {
	t.Helper()
	compared := 0
	for _, path := range collections(t, upstream) {
		if strings.HasSuffix(path, "/componentstatuses") {
			continue // what each server sees of other processes
		}
		// Objects that are being written differ until both have seen them.
		var told []string
		for range 20 {
			told = nil
			a, b := items(t, mortise, path), items(t, upstream, path)
			for name := range a {
				if b[name] == nil {
					told = append(told, name+" is missing at kube-apiserver")
				}
			}
			for name, o := range b {
				if a[name] == nil {
					told = append(told, name+" is missing at Mortise")
					continue
				}
				told = append(told, differences(name, a[name], o)...)
			}
			if len(told) == 0 {
				compared += len(b)
				break
			}
		}
		if len(told) > 0 {
			t.Errorf("%s: %d differences:\n%s", path, len(told), strings.Join(told[:min(len(told), 12)], "\n"))
		}
	}
	t.Logf("%d objects are the same at both", compared)
}

// fill creates objects of many kinds, with a prefix in their names.
func fill(t *testing.T, s *server, prefix string) {
	t.Helper()
	const core, apps = "/api/v1/namespaces/default", "/apis/apps/v1/namespaces/default"
	pod := map[string]any{
		"metadata": map[string]any{"labels": map[string]any{"app": prefix + "x"}},
		"spec":     map[string]any{"containers": []any{map[string]any{"name": "c", "image": "registry.example/i:1"}}},
	}
	create := func(path, name string, o map[string]any) {
		t.Helper()
		o["metadata"] = map[string]any{"name": prefix + name, "labels": map[string]any{"from": prefix + "x"}}
		s.create(t, path, o)
	}
	create(core+"/configmaps", "c", map[string]any{"data": map[string]any{"a": "b"}})
	create(core+"/secrets", "s", map[string]any{"stringData": map[string]any{"a": "b"}})
	create(core+"/pods", "p", map[string]any{"spec": pod["spec"]})
	create(core+"/services", "svc", map[string]any{"spec": map[string]any{"type": "NodePort", "selector": map[string]any{"app": prefix + "x"},
		"ports": []any{map[string]any{"port": 80}}}})
	create(core+"/persistentvolumeclaims", "pvc", map[string]any{"spec": map[string]any{"accessModes": []any{"ReadWriteOnce"},
		"resources": map[string]any{"requests": map[string]any{"storage": "1Gi"}}, "storageClassName": "none"}})
	create(core+"/resourcequotas", "q", map[string]any{"spec": map[string]any{"hard": map[string]any{"secrets": "1k"}}})
	create(core+"/limitranges", "l", map[string]any{"spec": map[string]any{"limits": []any{map[string]any{"type": "Container",
		"default": map[string]any{"cpu": "2"}}}}})
	create("/api/v1/namespaces", "ns", map[string]any{})
	create("/api/v1/persistentvolumes", "pv", map[string]any{"spec": map[string]any{"capacity": map[string]any{"storage": "1Gi"},
		"accessModes": []any{"ReadWriteOnce"}, "hostPath": map[string]any{"path": "/tmp/x"}}})
	template := map[string]any{"replicas": 0, "selector": map[string]any{"matchLabels": map[string]any{"app": prefix + "x"}}, "template": pod}
	create(apps+"/deployments", "d", map[string]any{"spec": template})
	create(apps+"/statefulsets", "sts", map[string]any{"spec": template})
	create("/apis/batch/v1/namespaces/default/cronjobs", "cj", map[string]any{"spec": map[string]any{"schedule": "0 0 1 1 *",
		"jobTemplate": map[string]any{"spec": map[string]any{"template": map[string]any{"spec": map[string]any{"restartPolicy": "Never",
			"containers": []any{map[string]any{"name": "c", "image": "i"}}}}}}}})
	create("/apis/autoscaling/v2/namespaces/default/horizontalpodautoscalers", "hpa", map[string]any{"spec": map[string]any{"maxReplicas": 3,
		"scaleTargetRef": map[string]any{"apiVersion": "apps/v1", "kind": "Deployment", "name": prefix + "d"}}})
	create("/apis/rbac.authorization.k8s.io/v1/clusterroles", "r", map[string]any{"rules": []any{map[string]any{"apiGroups": []any{""},
		"resources": []any{"pods"}, "verbs": []any{"get"}}}})
	const network = "/apis/networking.k8s.io/v1/namespaces/default"
	create(network+"/ingresses", "ing", map[string]any{"spec": map[string]any{"defaultBackend": map[string]any{
		"service": map[string]any{"name": prefix + "svc", "port": map[string]any{"number": 80}}}}})
	create(network+"/networkpolicies", "np", map[string]any{"spec": map[string]any{"podSelector": map[string]any{}}})
	create("/apis/storage.k8s.io/v1/storageclasses", "sc", map[string]any{"provisioner": "example.com/p"})
	create("/apis/coordination.k8s.io/v1/namespaces/default/leases", "le", map[string]any{"spec": map[string]any{"holderIdentity": "x"}})
	create("/apis/scheduling.k8s.io/v1/priorityclasses", "pc", map[string]any{"value": 1000})
	create("/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", "vap", map[string]any{"spec": map[string]any{
		"matchConstraints": map[string]any{"resourceRules": []any{map[string]any{"apiGroups": []any{"example.com"}, "apiVersions": []any{"v1"},
			"operations": []any{"CREATE"}, "resources": []any{"nothing"}}}},
		"validations": []any{map[string]any{"expression": "object.spec.replicas <= 5"}}}})
	create("/apis/resource.k8s.io/v1/namespaces/default/resourceclaims", "rc", map[string]any{"spec": map[string]any{"devices": map[string]any{
		"requests": []any{map[string]any{"name": "r", "exactly": map[string]any{"deviceClassName": "d.example.com"}}}}}})
	create("/apis/example.com/v1/namespaces/default/widgets", "w", map[string]any{"apiVersion": "example.com/v1", "kind": "Widget",
		"spec": map[string]any{"size": 3, "text": "<a> & b"}})
}

// definition is a CustomResourceDefinition with a schema.
func definition(t *testing.T, s *server) {
	t.Helper()
	s.create(t, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", named("widgets.example.com", map[string]any{"spec": map[string]any{
		"group": "example.com", "scope": "Namespaced",
		"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
		"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
			"subresources":             map[string]any{"status": map[string]any{}},
			"additionalPrinterColumns": []any{map[string]any{"name": "Size", "type": "integer", "jsonPath": ".spec.size"}},
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "properties": map[string]any{"spec": map[string]any{
				"type": "object", "properties": map[string]any{
					"size": map[string]any{"type": "integer", "default": 1, "maximum": 10}, "text": map[string]any{"type": "string"}}}}}},
		}},
	}}))
	s.until(t, http.StatusOK, http.MethodGet, "/apis/example.com/v1/namespaces/default/widgets", "", nil)
}

// changes reads the names of the ConfigMaps that a watch shows, from a revision on, until one that ends it. The watch may be refused: then
// it returns the reason.
func changes(t *testing.T, s *server, from, last string) (names []string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/api/v1/namespaces/default/configmaps?watch=1&resourceVersion="+from, nil)
	must(t, err)
	response, err := s.client.Do(r)
	must(t, err)
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		var event struct {
			Type   string
			Object struct {
				Metadata struct{ Name string }
				Message  string
			}
		}
		must(t, json.Unmarshal(lines.Bytes(), &event))
		if event.Type == "ERROR" {
			return []string{event.Object.Message}
		}
		if names = append(names, event.Object.Metadata.Name); event.Object.Metadata.Name == last {
			return names
		}
	}
	t.Fatalf("the watch from %s ended after %v", from, names)
	return nil
}

// TestHandOver puts kube-apiserver and Mortise in each other's place on one etcd: both at once, then in turns. Both show the same objects,
// and clients' watches go on.
func TestHandOver(t *testing.T) {
	binary := kubeAPIServer(t)
	c := launch(t, 1).ready(t)
	defer c.remove()
	dir := t.TempDir()
	begin := func() *server {
		s, err := start(t, dir, "--store", "etcd", "--etcd-servers", strings.Join(c.urls, ","), "--advertise-address", "192.0.2.10")
		must(t, err)
		return s
	}
	m := begin()
	m.until(t, http.StatusOK, http.MethodGet, "/api/v1/namespaces/default/serviceaccounts/default", "", nil)
	definition(t, m)
	fill(t, m, "a-")
	u := upstream(t, c, dir, binary, m)
	published(t, m, "192.0.2.10", "192.0.2.20")
	same(t, m, u)
	fill(t, u, "b-")
	fill(t, m, "c-")
	same(t, m, u)

	m.kill()
	made := u.create(t, "/api/v1/namespaces/default/configmaps", named("turn", nil))
	at := func() string { return field(made, "metadata", "resourceVersion").(string) }
	const turns = 10
	now, service := u, map[any]bool{}
	for i := range turns {
		if i%2 == 0 {
			now.kill()
			now = begin()
		} else {
			now.kill()
			now = upstream(t, c, dir, binary, m)
		}
		from, want := at(), []string{}
		for n := range 20 {
			name := fmt.Sprintf("turn-%d-%d", i, n)
			made, want = now.create(t, "/api/v1/namespaces/default/configmaps", named(name, nil)), append(want, name)
		}
		// Mortise shows what the other server wrote before it came. kube-apiserver answers 410, and clients list again.
		if got := changes(t, now, from, want[len(want)-1]); i%2 == 0 && !slices.Equal(got, want) {
			t.Errorf("turn %d: the watch shows %v, want %v", i, got, want)
		} else if all := items(t, now, "/api/v1/namespaces/default/configmaps"); all["default/"+want[0]] == nil {
			t.Errorf("turn %d: %s is missing", i, want[0])
		}
		for n := range 10 {
			got := now.create(t, "/api/v1/namespaces/default/services", named(fmt.Sprintf("turn-%d-%d", i, n), map[string]any{"spec": map[string]any{
				"type": "NodePort", "ports": []any{map[string]any{"port": 80}}}}))
			ports := field(got, "spec", "ports").([]any)
			for _, allocated := range []any{field(got, "spec", "clusterIP"), ports[0].(map[string]any)["nodePort"]} {
				if allocated == nil || service[allocated] {
					t.Errorf("turn %d: %v is allocated twice", i, allocated)
				}
				service[allocated] = true
			}
		}
	}
	m = begin()
	same(t, m, now)

	// Back to a data directory.
	now.kill()
	want, paths := map[string]map[string]map[string]any{}, collections(t, m)
	for _, path := range paths {
		want[path] = items(t, m, path)
	}
	m.kill()
	alone := t.TempDir()
	must(t, os.CopyFS(filepath.Join(alone, "pki"), os.DirFS(filepath.Join(dir, "pki"))))
	mortise(t, "store", "import", "--data-dir", alone, "--from", "etcd://"+strings.TrimPrefix(c.urls[0], "http://"))
	m, err := start(t, alone)
	must(t, err)
	compared := 0
	for _, path := range paths {
		switch path[strings.LastIndex(path, "/")+1:] {
		case "leases", "endpoints", "endpointslices", "events": // what a server that starts writes itself
			continue
		}
		got := items(t, m, path)
		for name, o := range want[path] {
			if name == "default/kubernetes" { // the Service has another target port
				continue
			}
			for _, d := range differences(path+" "+name, got[name], o) {
				t.Error(d)
			}
			compared++
		}
	}
	t.Logf("%d objects are the same in a data directory", compared)
}

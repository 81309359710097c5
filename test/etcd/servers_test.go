// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/test/programs"
)

// server is a process of `mortise up --store etcd`.
type server struct {
	url    string
	client *http.Client // an administrator's
	proc   *exec.Cmd
	said   string // until it was ready
	dir    string // its data directory, if a test needs it
}

// up starts a server on an etcd cluster, with the authorities in pki, and returns when it is ready.
func up(t *testing.T, c *members, pki string, flags ...string) *server {
	t.Helper()
	dir := t.TempDir()
	if pki != "" {
		must(t, os.CopyFS(filepath.Join(dir, "pki"), os.DirFS(pki)))
	}
	s, err := start(t, dir, append([]string{"--store", "etcd", "--etcd-servers", strings.Join(c.urls, ",")}, flags...)...)
	must(t, err)
	return s
}

// start starts a server on a data directory.
func start(t *testing.T, dir string, flags ...string) (*server, error) {
	t.Helper()
	return startBy(t, exec.Command, dir, flags...)
}

// startBy starts a server with a command that a function makes.
func startBy(t *testing.T, command func(program string, args ...string) *exec.Cmd, dir string, flags ...string) (*server, error) {
	t.Helper()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	s := &server{}
	s.proc = command(programs.Path("mortise"), append([]string{"up", "--data-dir", dir, "--kubeconfig", kubeconfig,
		"--listen", "127.0.0.1:0", "--node", "none"}, flags...)...)
	s.proc.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := s.proc.StdoutPipe()
	must(t, err)
	s.proc.Stderr = s.proc.Stdout
	must(t, s.proc.Start())
	// The line that says ready ends the start, and so does the end of the process.
	var text bytes.Buffer
	part := make([]byte, 4096)
	for !strings.Contains(text.String(), "ready in") {
		n, err := out.Read(part)
		text.Write(part[:n])
		if err != nil {
			_ = s.proc.Wait()
			return nil, fmt.Errorf("%s", text.String())
		}
	}
	s.said = text.String()
	var rest sync.WaitGroup
	rest.Go(func() { _, _ = io.Copy(io.Discard, out) })
	t.Cleanup(func() {
		s.kill()
		rest.Wait()
	})
	s.access(t, kubeconfig)
	return s, nil
}

func (s *server) kill() {
	_ = s.proc.Process.Kill()
	_ = s.proc.Wait()
}

// access reads a kubeconfig.
func (s *server) access(t *testing.T, file string) {
	t.Helper()
	url, config := programs.Access(t, file)
	s.url = url
	s.client = &http.Client{Timeout: limit, Transport: &http.Transport{
		TLSClientConfig: config, ForceAttemptHTTP2: true,
	}}
}

// ask sends a request with a body of JSON, as the bearer of a token or, without one, as an administrator.
func (s *server) ask(t *testing.T, method, path, token string, body any) (int, map[string]any) {
	t.Helper()
	var sent io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		must(t, err)
		sent = bytes.NewReader(text)
	}
	r, err := http.NewRequestWithContext(t.Context(), method, s.url+path, sent)
	must(t, err)
	r.Header.Set("Content-Type", "application/json")
	client := s.client
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
		plain := client.Transport.(*http.Transport).Clone()
		plain.TLSClientConfig.Certificates = nil
		defer plain.CloseIdleConnections()
		client = &http.Client{Timeout: limit, Transport: plain}
	}
	response, err := client.Do(r)
	must(t, err)
	defer response.Body.Close()
	var got map[string]any
	text, err := io.ReadAll(response.Body)
	must(t, err)
	if json.Unmarshal(text, &got) != nil {
		got = map[string]any{"text": string(text)}
	}
	return response.StatusCode, got
}

// create creates an object and returns it.
func (s *server) create(t *testing.T, path string, object map[string]any) map[string]any {
	t.Helper()
	code, got := s.ask(t, http.MethodPost, path, "", object)
	if code != http.StatusCreated {
		t.Fatalf("create %s: %d %v", path, code, got)
	}
	return got
}

// until asks again until a request has an answer: another server learns of a write without telling.
func (s *server) until(t *testing.T, want int, method, path, token string, body any) map[string]any {
	t.Helper()
	began := time.Now()
	for {
		code, got := s.ask(t, method, path, token, body)
		if code == want {
			t.Logf("%s %s: %d after %d ms", method, path, code, time.Since(began).Milliseconds())
			return got
		}
		if time.Since(began) > limit/2 {
			t.Fatalf("%s %s: %d %v, want %d", method, path, code, got, want)
		}
	}
}

func field(object map[string]any, path ...string) any {
	var at any = object
	for _, name := range path {
		m, _ := at.(map[string]any)
		at = m[name]
	}
	return at
}

func named(name string, more map[string]any) map[string]any {
	o := map[string]any{"metadata": map[string]any{"name": name}}
	for k, v := range more {
		o[k] = v
	}
	return o
}

// joined starts a second server, which gets the keys of the first one for a token. Tokens that do not fit are refused first.
func joined(t *testing.T, c *members, first *server, dir string, args ...string) *server {
	t.Helper()
	create := func(more ...string) string {
		t.Helper()
		out, err := exec.Command(programs.Path("mortise"), append([]string{"token", "create", "--kubeconfig", filepath.Join(dir, "kubeconfig")},
			more...)...).Output()
		must(t, err)
		return strings.TrimSpace(string(out))
	}
	token := create("--role", "server")
	hash, secret, _ := strings.Cut(token, "::")
	second := t.TempDir()
	join := func(token string) (*server, error) {
		return start(t, second, append([]string{"--store", "etcd", "--etcd-servers", strings.Join(c.urls, ","), "--join", first.url,
			"--token", token}, args...)...)
	}
	for wrong, says := range map[string]string{
		secret: "no hash of the cluster's CA",
		"sha256:" + strings.Repeat("0", 64) + "::" + secret: "the hash of the cluster's CA is " + hash,
		hash + "::" + create():                              "not one for servers",
		hash + "::abcdef.0123456789abcdef":                  "unknown to the cluster",
	} {
		if _, err := join(wrong); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("with the token %s: %v, want %q", wrong, err, says)
		}
		if _, err := os.Stat(filepath.Join(second, "pki")); err == nil {
			t.Errorf("keys are there after the token %s", wrong)
		}
	}
	s, err := join(token)
	must(t, err)
	for _, name := range []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key"} {
		want, err := os.ReadFile(filepath.Join(dir, "pki", name))
		must(t, err)
		got, err := os.ReadFile(filepath.Join(second, "pki", name))
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Errorf("the servers' %s differ", name)
		}
	}
	return s
}

// TestTwoServers: a server joins another by a token. What is written at one of two servers counts at the other, allocations of both are
// unique, one of them leads, and the other goes on when it is killed. A server of another cluster is refused.
func TestTwoServers(t *testing.T) {
	const atA, atB = "192.0.2.10", "192.0.2.9"
	if !alone(t, atA, atB) {
		return
	}
	c := launch(t, 3).ready(t)
	defer c.remove()
	dir := t.TempDir()
	a, err := start(t, dir, "--store", "etcd", "--etcd-servers", strings.Join(c.urls, ","),
		"--listen", atA+":6443", "--advertise-address", atA)
	must(t, err)
	b := joined(t, c, a, dir, "--listen", atB+":6443", "--advertise-address", atB)
	published(t, a, atA, atB)

	const core = "/api/v1/namespaces/default"
	account := core + "/serviceaccounts/default"
	a.until(t, http.StatusOK, http.MethodGet, account, "", nil)
	request := map[string]any{"spec": map[string]any{}}
	_, got := a.ask(t, http.MethodPost, account+"/token", "", request)
	token, _ := field(got, "status", "token").(string)
	secrets := core + "/secrets"
	if code, got := b.ask(t, http.MethodGet, secrets, token, nil); code != http.StatusForbidden {
		t.Errorf("without a binding: %d %v", code, got)
	}
	a.create(t, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", named("reader", map[string]any{
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "namespace": "default", "name": "default"}},
	}))
	b.until(t, http.StatusOK, http.MethodGet, secrets, token, nil)

	a.create(t, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", named("widgets.example.com", map[string]any{"spec": map[string]any{
		"group": "example.com", "scope": "Namespaced",
		"names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
		"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
			"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
	}}))
	widget := named("w", map[string]any{"apiVersion": "example.com/v1", "kind": "Widget"})
	b.until(t, http.StatusCreated, http.MethodPost, "/apis/example.com/v1/namespaces/default/widgets", "", widget)

	// A webhook that does not answer refuses config maps everywhere.
	hook := a.create(t, "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations", named("closed", map[string]any{
		"webhooks": []any{map[string]any{
			"name": "closed.example.com", "sideEffects": "None", "admissionReviewVersions": []any{"v1"},
			"clientConfig": map[string]any{"url": "https://127.0.0.1:9/", "caBundle": base64.StdEncoding.EncodeToString(nil)},
			"rules": []any{map[string]any{"apiGroups": []any{""}, "apiVersions": []any{"v1"}, "operations": []any{"CREATE"},
				"resources": []any{"podtemplates"}}},
		}},
	}))
	template := map[string]any{"metadata": map[string]any{"generateName": "t-"}, "template": map[string]any{"spec": map[string]any{
		"containers": []any{map[string]any{"name": "c", "image": "i"}}}}}
	b.until(t, http.StatusInternalServerError, http.MethodPost, core+"/podtemplates", "", template)
	if code, got := a.ask(t, http.MethodDelete, "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/"+
		field(hook, "metadata", "name").(string), "", nil); code != http.StatusOK {
		t.Errorf("delete the webhook: %d %v", code, got)
	}
	b.until(t, http.StatusCreated, http.MethodPost, core+"/podtemplates", "", template)

	// A client that has read or written at one server reads no less at the other.
	for i := range 20 {
		made := a.create(t, core+"/configmaps", named(fmt.Sprint("c", i), nil))
		if code, got := b.ask(t, http.MethodGet, fmt.Sprintf("%s/configmaps/c%d", core, i), "", nil); code != http.StatusOK ||
			field(got, "metadata", "resourceVersion") != field(made, "metadata", "resourceVersion") {
			t.Errorf("%d: %v", code, got)
		}
	}
	unique(t, a, b)

	foreign := filepath.Join(t.TempDir(), "foreign")
	if _, err := start(t, foreign, "--store", "etcd", "--etcd-servers", strings.Join(c.urls, ",")); err == nil ||
		!strings.Contains(err.Error(), "authority") {
		t.Errorf("a server with another authority: %v", err)
	}

	lease := func(s *server) any {
		_, got := s.ask(t, http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager", "", nil)
		return field(got, "spec", "holderIdentity")
	}
	if lease(a) == nil || lease(a) != lease(b) {
		t.Errorf("the leader is %v at one server, %v at the other", lease(a), lease(b))
	}
	a.kill()
	b.create(t, core+"/configmaps", named("after", nil))
	published(t, b, atB)
}

// published waits until the endpoints of the Service kubernetes are of some addresses.
func published(t *testing.T, s *server, want ...string) {
	t.Helper()
	slices.Sort(want)
	began := time.Now()
	for {
		code, got := s.ask(t, http.MethodGet, "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes", "", nil)
		var addresses []string
		endpoints, _ := got["endpoints"].([]any)
		for _, e := range endpoints {
			addresses = append(addresses, e.(map[string]any)["addresses"].([]any)[0].(string))
		}
		slices.Sort(addresses)
		if code == http.StatusOK && slices.Equal(addresses, want) {
			t.Logf("endpoints are %v after %d ms", want, time.Since(began).Milliseconds())
			return
		}
		if time.Since(began) > limit/2 {
			t.Fatalf("endpoints: %d %v, want %v", code, addresses, want)
		}
	}
}

// unique creates services at both servers at once, all with addresses and ports of their own, and one name twice.
func unique(t *testing.T, servers ...*server) {
	t.Helper()
	const each = 20
	var all sync.WaitGroup
	results := make(chan map[string]any, each*len(servers))
	codes := make(chan int, each*len(servers))
	for i, s := range servers {
		all.Go(func() {
			for n := range each {
				code, got := s.ask(t, http.MethodPost, "/api/v1/namespaces/default/services", "", named(fmt.Sprintf("s%d-%d", i, n), map[string]any{
					"spec": map[string]any{"type": "NodePort", "ports": []any{map[string]any{"port": 80}}}}))
				if code != http.StatusCreated {
					t.Errorf("%d %v", code, got)
					continue
				}
				results <- got
				code, _ = s.ask(t, http.MethodPost, "/api/v1/namespaces/default/configmaps", "", named(fmt.Sprint("same", n), nil))
				codes <- code
			}
		})
	}
	all.Wait()
	close(results)
	close(codes)
	taken := map[any]string{}
	for got := range results {
		name, _ := field(got, "metadata", "name").(string)
		ports, _ := field(got, "spec", "ports").([]any)
		port, _ := ports[0].(map[string]any)
		for _, allocated := range []any{field(got, "spec", "clusterIP"), port["nodePort"]} {
			if other, twice := taken[allocated]; twice || allocated == nil {
				t.Errorf("%v belongs to %s and %s", allocated, other, name)
			}
			taken[allocated] = name
		}
	}
	count := map[int]int{}
	for code := range codes {
		count[code]++
	}
	if count[http.StatusCreated] != each || count[http.StatusConflict] != each {
		t.Errorf("names created twice: %v", count)
	}
}

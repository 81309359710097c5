// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"crypto/ecdsa"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/websocket"

	"github.com/mortise-dev/mortise/internal/machine/unshare/unsharetest"
	"github.com/mortise-dev/mortise/test/programs"
)

// elsewhere starts a server on a host of another name, in a namespace, since servers are known by the names of their hosts. The others
// reach it on a port of loopback.
func elsewhere(t *testing.T, c *members, pki, host string, flags ...string) *server {
	t.Helper()
	dir := t.TempDir()
	if pki != "" {
		must(t, os.CopyFS(filepath.Join(dir, "pki"), os.DirFS(pki)))
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	_, port, err := net.SplitHostPort(l.Addr().String())
	must(t, err)
	must(t, l.Close())
	s, err := startBy(t, func(program string, args ...string) *exec.Cmd {
		inside := []string{"--uts", "sh", "-c", `hostname "$0" && exec "$@"`, host, program}
		if os.Getuid() != 0 {
			inside = append([]string{"--map-root-user"}, inside...)
		}
		return exec.Command("unshare", append(inside, args...)...)
	}, dir, append([]string{"--store", "etcd", "--etcd-servers", strings.Join(c.urls, ","), "--listen", "127.0.0.1:" + port,
		"--peer-advertise-ip", "127.0.0.1", "--peer-advertise-port", port}, flags...)...)
	must(t, err)
	s.dir = dir
	return s
}

// text returns the body of a GET with an Accept header.
func (s *server) text(t *testing.T, path, accept string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.url+path, nil)
	must(t, err)
	r.Header.Set("Accept", accept)
	response, err := s.client.Do(r)
	must(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must(t, err)
	return string(body)
}

// watchedBySocket opens a watch over WebSocket.
func (s *server) watchedBySocket(t *testing.T, path string) *websocket.Conn {
	t.Helper()
	config, err := websocket.NewConfig("wss"+strings.TrimPrefix(s.url, "https")+path+"?watch=1", s.url)
	must(t, err)
	config.TlsConfig = s.client.Transport.(*http.Transport).TLSClientConfig.Clone()
	config.TlsConfig.NextProtos = []string{"http/1.1"}
	c, err := config.DialContext(t.Context())
	must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	must(t, c.SetDeadline(time.Now().Add(limit)))
	return c
}

func cronJob(name string) map[string]any {
	return named(name, map[string]any{"spec": map[string]any{"schedule": "0 3 * * *", "jobTemplate": map[string]any{"spec": map[string]any{
		"template": map[string]any{"spec": map[string]any{"restartPolicy": "Never",
			"containers": []any{map[string]any{"name": "c", "image": "i"}}}}}}}})
}

// deniedElsewhere checks that the server to which a request is forwarded decides by the client's name what it may do.
func (s *server) deniedElsewhere(t *testing.T, path string) {
	t.Helper()
	const account = "/api/v1/namespaces/default/serviceaccounts/default"
	s.until(t, http.StatusOK, http.MethodGet, account, "", nil)
	_, issued := s.ask(t, http.MethodPost, account+"/token", "", map[string]any{"spec": map[string]any{}})
	token, _ := field(issued, "status", "token").(string)
	if code, got := s.ask(t, http.MethodGet, path, token, nil); code != http.StatusForbidden {
		t.Errorf("as a user without rights: %d %v", code, got)
	}
}

// TestPeers: a server that does not serve a built-in group, as an older one would not, forwards its requests to one that does, under the
// client's name, and its discovery has the group. A definition that is written at one server is served at the other with the next request.
func TestPeers(t *testing.T) {
	c := launch(t, 1).ready(t)
	defer c.remove()
	whole := elsewhere(t, c, "", "whole.example.com")
	less := elsewhere(t, c, filepath.Join(whole.dir, "pki"), "less.example.com", "--runtime-config", "batch/v1=false")
	const jobs, name = "/apis/batch/v1/namespaces/default/cronjobs", "nightly"
	less.until(t, http.StatusOK, http.MethodGet, jobs, "", nil)
	events, sockets := less.watched(t, jobs), less.watchedBySocket(t, jobs)
	made := less.create(t, jobs, cronJob(name))
	next(t, events, "ADDED "+name)
	var first struct{ Object map[string]any }
	if err := websocket.JSON.Receive(sockets, &first); err != nil || field(first.Object, "metadata", "uid") != field(made, "metadata", "uid") {
		t.Errorf("over WebSocket: %v, %v", first, err)
	}
	if code, got := whole.ask(t, http.MethodGet, jobs+"/"+name, "", nil); code != http.StatusOK ||
		field(got, "metadata", "uid") != field(made, "metadata", "uid") {
		t.Errorf("at the other server: %d %v", code, got)
	}
	if code, got := less.ask(t, http.MethodDelete, jobs+"/"+name, "", nil); code != http.StatusOK {
		t.Errorf("delete: %d %v", code, got)
	}
	next(t, events, "DELETED "+name)
	if code, got := less.ask(t, http.MethodGet, "/apis/batch/v7/namespaces/default/cronjobs", "", nil); code != http.StatusNotFound {
		t.Errorf("what no server serves: %d %v", code, got)
	}

	less.deniedElsewhere(t, jobs)
	const v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	for accept, want := range map[string]bool{v2: true, v2 + ";profile=nopeer": false, "application/json": false} {
		if got := strings.Contains(less.text(t, "/apis", accept), `"name":"batch"`); got != want {
			t.Errorf("discovery with %s has the group: %v", accept, got)
		}
	}
	if same := whole.text(t, "/apis", v2) == whole.text(t, "/apis", v2+";profile=nopeer"); !same {
		t.Error("discovery of the server that serves everything differs with the other server")
	}
	if got := less.text(t, "/metrics", "*/*"); !strings.Contains(got, `apiserver_rerouted_request_total{code="201",group="batch",resource="cronjobs",version="v1"} 1`) {
		t.Error("no metric counts the forwarded request")
	}

	for i := range 5 {
		group := fmt.Sprintf("g%d.example.com", i)
		whole.create(t, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", named("widgets."+group, map[string]any{"spec": map[string]any{
			"group": group, "scope": "Namespaced", "names": map[string]any{"plural": "widgets", "singular": "widget", "kind": "Widget"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true, "schema": map[string]any{
				"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		}}))
		less.create(t, "/apis/"+group+"/v1/namespaces/default/widgets", named("w", map[string]any{"apiVersion": group + "/v1", "kind": "Widget"}))
	}
}

// upstreamPeer starts a kube-apiserver that has Mortise as its peer.
func upstreamPeer(t *testing.T, c *members, binary string, like *server, flags ...string) *server {
	t.Helper()
	pki := filepath.Join(like.dir, "pki")
	pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "front-proxy-ca.crt"), filepath.Join(pki, "front-proxy-ca.key"))
	must(t, err)
	front := &authority{dir: t.TempDir(), cert: pair.Leaf, key: pair.PrivateKey.(*ecdsa.PrivateKey)}
	front.sign(t, "front-proxy-client", "")
	return upstream(t, c, like.dir, binary, like, append([]string{"--peer-ca-file", filepath.Join(pki, "ca.crt"),
		"--proxy-client-cert-file", front.file("front-proxy-client.crt"), "--proxy-client-key-file", front.file("front-proxy-client.key"),
	}, flags...)...)
}

// TestPeersOfBothKinds: a kube-apiserver finds Mortise by its key in etcd, and forwards to it what it does not serve itself.
func TestPeersOfBothKinds(t *testing.T) {
	binary := kubeAPIServer(t)
	c := launch(t, 1).ready(t)
	defer c.remove()
	whole := elsewhere(t, c, "", "whole.example.com")
	theirs := upstreamPeer(t, c, binary, whole, "--runtime-config", "batch/v1=false")
	theirs.until(t, http.StatusOK, http.MethodGet, "/apis/batch/v1/namespaces/default/cronjobs", "", nil)
	const v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	if got := theirs.text(t, "/apis", v2); !strings.Contains(got, `"name":"batch"`) {
		t.Error("its discovery lacks the group")
	}
}

// TestForwardedToKubeAPIServer: Mortise finds a kube-apiserver by its key in etcd, and forwards to it what it does not serve itself, under
// the client's name. kube-apiserver 1.37.1 tells its peers the address that it advertises, whatever --peer-advertise-ip says, and does not
// advertise one of loopback: the test has a network of its own for that.
func TestForwardedToKubeAPIServer(t *testing.T) {
	binary := kubeAPIServer(t)
	if !unsharetest.Alone(t, func() []string { return []string{builtIn + "=" + programs.Dir()} }) {
		return
	}
	for _, args := range []string{"link set lo up", "address add 192.0.2.20/32 dev lo"} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Fatalf("ip %s: %v: %s", args, err, out)
		}
	}
	c := launch(t, 1).ready(t)
	defer c.remove()
	less := elsewhere(t, c, "", "less.example.com", "--runtime-config", "batch/v1=false")
	theirs := upstreamPeer(t, c, binary, less, "--bind-address", "0.0.0.0")
	const jobs, name = "/apis/batch/v1/namespaces/default/cronjobs", "nightly"
	less.until(t, http.StatusOK, http.MethodGet, jobs, "", nil)
	events := less.watched(t, jobs)
	made := less.create(t, jobs, cronJob(name))
	next(t, events, "ADDED "+name)
	if code, got := theirs.ask(t, http.MethodGet, jobs+"/"+name, "", nil); code != http.StatusOK ||
		field(got, "metadata", "uid") != field(made, "metadata", "uid") {
		t.Errorf("at kube-apiserver: %d %v", code, got)
	}
	if code, got := less.ask(t, http.MethodDelete, jobs+"/"+name, "", nil); code != http.StatusOK {
		t.Errorf("delete: %d %v", code, got)
	}
	next(t, events, "DELETED "+name)
	less.deniedElsewhere(t, jobs)
	const v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
	if got := less.text(t, "/apis", v2); !strings.Contains(got, `"name":"batch"`) {
		t.Error("the discovery lacks the group")
	}
}

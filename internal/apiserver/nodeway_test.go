// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"crypto/tls"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/servingkey"
)

// TestKubeletClientCertificate checks that the certificate for nodes names no group, and that the API rejects it.
func TestKubeletClientCertificate(t *testing.T) {
	f := start(t)
	m := f.opts.Material
	if groups := m.KubeletClient.Certificate.Subject.Organization; len(groups) > 0 {
		t.Errorf("it is of the groups %v", groups)
	}
	config := rest.CopyConfig(f.tls)
	config.CertData, config.KeyData = m.KubeletClient.CertPEM, m.KubeletClient.KeyPEM
	for _, path := range []string{"/api", "/api/v1/namespaces/ns/configmaps"} {
		code := 0
		kubernetes.NewForConfigOrDie(config).CoreV1().RESTClient().Get().AbsPath(path).Do(t.Context()).StatusCode(&code)
		if code != http.StatusUnauthorized {
			t.Errorf("%s: %d", path, code)
		}
	}
}

// TestNodeProxyDoesNotReachTheServer checks that the server does not connect to a node that names the server's own
// address, in any notation, or another address that leads to the server.
func TestNodeProxyDoesNotReachTheServer(t *testing.T) {
	f := start(t)
	if f.nodes.Dial != nil {
		t.Error("without an egress proxy an address is to be checked at the moment of the connection")
	}
	f.AddKinds(nodes())
	_, portText, err := net.SplitHostPort(strings.TrimPrefix(f.tls.Host, "https://"))
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(portText)
	if err != nil {
		t.Fatal(err)
	}
	c := kubernetes.NewForConfigOrDie(f.inProcess).CoreV1()
	// A request over the network: the server knows its own addresses once it accepts connections.
	if _, err := kubernetes.NewForConfigOrDie(f.tls).CoreV1().ConfigMaps("ns").List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	ask := func(name, address string, port int) error {
		t.Helper()
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(port)
		if _, err := c.Nodes().Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		u, way, err := f.Backend().Node(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: way}).Get(u.String() + "/api/v1/namespaces/ns/configmaps")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		t.Errorf("%s: %d %s", address, resp.StatusCode, body)
		return nil
	}
	for name, address := range map[string]string{"plain": "127.0.0.1", "other": "127.0.0.9", "mapped": "::ffff:127.0.0.1", "name": "localhost",
		"unspecified": "0.0.0.0"} {
		if err := ask(name, address, port); err != nil && !strings.Contains(err.Error(), "the API server's own") {
			t.Errorf("%s: %v", address, err)
		}
	}

	// Another port that leads to the server, like an address translation.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		in, err := l.Accept()
		if err != nil {
			return
		}
		defer in.Close()
		out, err := new(net.Dialer).DialContext(ctx, "tcp", "127.0.0.1:"+portText)
		if err != nil {
			return
		}
		defer out.Close()
		go io.Copy(out, in)
		io.Copy(in, out)
	}()
	err = ask("translated", "127.0.0.1", l.Addr().(*net.TCPAddr).Port)
	l.Close()
	cancel()
	<-passed
	if err != nil && !strings.Contains(err.Error(), "an API server answers there") {
		t.Errorf("translated: %v", err)
	}
}

// TestNodeProxyVerifiesTheAgent checks that requests reach only a node that presents a certificate of the cluster's CA
// or the key that it has published.
func TestNodeProxyVerifiesTheAgent(t *testing.T) {
	f := start(t)
	f.AddKinds(nodes())
	other, err := serving.LoadOrCreate(t.TempDir(), []string{"localhost"}, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	c := kubernetes.NewForConfigOrDie(f.inProcess).CoreV1().Nodes()
	// ask sends a request to a node, at whose address a server presents a certificate of signer for another node or for
	// this one.
	ask := func(name string, signer *serving.Material, of string, publish bool) (string, error) {
		t.Helper()
		pair, err := signer.Node(of, []string{"127.0.0.1"}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		agent := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.URL.Path) }))
		agent.Config.ErrorLog = log.New(io.Discard, "", 0)
		agent.TLS = &tls.Config{Certificates: []tls.Certificate{pair.TLS()}, ClientAuth: tls.RequestClientCert}
		agent.StartTLS()
		defer agent.Close()
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if publish {
			n.Annotations = map[string]string{servingkey.Annotation: servingkey.Of(pair.Certificate)}
		}
		n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
		n.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(agent.Listener.Addr().(*net.TCPAddr).Port)
		if _, err := c.Create(t.Context(), n, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		u, way, err := f.Backend().Node(t.Context(), name)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := (&http.Client{Transport: way}).Get(u.String() + "/logs")
		if err != nil {
			return "", err
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	for _, one := range []struct {
		name    string
		signer  *serving.Material
		of      string
		publish bool
		want    string // in the error; empty: the node responds
	}{
		{"signed", f.opts.Material, "signed", false, ""},
		{"signed-for-another", f.opts.Material, "signed", false, "another node answers there: signed"},
		{"unknown", other, "unknown", false, "set serverTLSBootstrap: true"},
		{"published", other, "published", true, ""},
		{"published-by-another", other, "published", true, "another node answers there: published"},
	} {
		got, err := ask(one.name, one.signer, one.of, one.publish)
		if one.want == "" && (err != nil || got != "/logs") || one.want != "" && (err == nil || !strings.Contains(err.Error(), one.want)) {
			t.Errorf("%s: %q, %v, want %q", one.name, got, err, one.want)
		}
	}
}

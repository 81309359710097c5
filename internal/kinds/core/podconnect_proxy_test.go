// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/resource"
)

// behindProxy is what answers at the pod's address: it says what it heard, redirects, shows a page, or upgrades.
func behindProxy(scheme string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("Upgrade") == "echo":
			c, rw, err := http.NewResponseController(w).Hijack()
			if err != nil {
				return
			}
			defer c.Close()
			io.WriteString(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
			rw.Flush()
			line, _ := rw.ReadString('\n')
			io.WriteString(rw, "heard "+line)
			rw.Flush()
		case r.URL.Path == "/moved":
			http.Redirect(w, r, "/to?x=1", http.StatusFound)
		case r.URL.Path == "/page":
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, `<a href="/x">x</a>`)
		default:
			body, _ := io.ReadAll(r.Body)
			fmt.Fprintf(w, "%s %s %s %s", scheme, r.Method, r.URL.RequestURI(), body)
		}
	})
}

// serveProxies answers for pods, services and nodes at 192.0.2.1, which leads to servers of this test.
func serveProxies(t *testing.T) string {
	open, secret := httptest.NewServer(behindProxy("http")), httptest.NewTLSServer(behindProxy("https"))
	t.Cleanup(open.Close)
	t.Cleanup(secret.Close)
	way := ordinary(nil)
	way.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		to := map[string]string{"192.0.2.1:80": open.Listener.Addr().String(), "192.0.2.1:443": secret.Listener.Addr().String()}[addr]
		if to == "" {
			return nil, fmt.Errorf("dial %s: nobody is there", addr)
		}
		return new(net.Dialer).DialContext(ctx, network, to)
	}
	pod := connectPod("web", "n1", "c")
	pod.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 80}}
	pod.Status.PodIPs = []corev1.PodIP{{IP: "192.0.2.1"}}
	away := connectPod("away", "n1", "c")
	away.Status.PodIPs = []corev1.PodIP{{IP: "127.0.0.1"}}
	meta := metav1.ObjectMeta{Name: "web", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}
	port := func(name string, n int32) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Port: &n}
	}
	b := &connectBackend{agent: newAgent(t), objects: map[string]resource.Object{
		"pods/web": pod, "pods/away": away,
		"services/web": &corev1.Service{ObjectMeta: meta,
			Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "a", Port: 8000}, {Name: "b", Port: 8443}}}},
		"endpointslices/web": &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{port("a", 80), port("b", 443)},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web"}}}},
	}}
	subs := map[string]*resource.Connect{
		"pods":     proxySubresource("PodProxyOptions", locatePod, way).Connect,
		"services": proxySubresource("ServiceProxyOptions", locateService(corev1.IPv4Protocol), way).Connect,
		"nodes":    proxySubresource("NodeProxyOptions", locateNode, way).Connect,
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/", 4)
		h, err := subs[p[0]].Handler(r.Context(), b, "default", p[1], nil, strings.Join(p[3:], ""))
		if err != nil {
			writeStatus(w, err)
			return
		}
		h.ServeHTTP(plain{w}, r)
	}))
	t.Cleanup(srv.Close)
	return srv.URL + "/api/v1/"
}

// TestProxies asks real servers through the proxies of pods, services and nodes.
func TestProxies(t *testing.T) {
	host := serveProxies(t)
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	for _, c := range []struct{ method, path, body, want string }{
		{"GET", "pods/web/proxy/a/b?x=1&y=2", "", "200 http GET /a/b?x=1&y=2 "},
		{"GET", "pods/web:80/proxy/a/", "", "200 http GET /a/ "},
		{"GET", "pods/https:web:443/proxy/a", "", "200 https GET /a "},
		{"GET", "pods/web/proxy", "", "301  -> /api/v1/pods/web/proxy/"},
		{"POST", "pods/web/proxy/a", "hello", "200 http POST /a hello"},
		{"PUT", "services/web:a/proxy/a", "hello", "200 http PUT /a hello"},
		{"PATCH", "services/web:8000/proxy/a", "hello", "200 http PATCH /a hello"},
		{"DELETE", "services/https:web:b/proxy/a", "", "200 https DELETE /a "},
		{"OPTIONS", "services/https:web:8443/proxy/a", "", "200 https OPTIONS /a "},
		{"HEAD", "pods/web/proxy/a", "", "200 "},
		{"GET", "pods/web/proxy/moved", "", "302 <a href=\"/to?x=1\">Found</a>.\n\n -> /api/v1/pods/web/proxy/to?x=1"},
		{"GET", "pods/web/proxy/page", "", `200 <a href="/api/v1/pods/web/proxy/x">x</a>`},
		{"GET", "nodes/n1/proxy/metrics", "", "200 up 1\n"},
		{"GET", "nodes/n1:22/proxy/", "", "400 BadRequest: address not allowed"},
		{"GET", "pods/away:80/proxy/", "", "400 BadRequest: address not allowed"},
		{"GET", "pods/web:http/proxy/", "", `400 BadRequest: invalid pod request "web:http": "http" is no port number`},
		{"GET", "pods/ftp:web:80/proxy/", "", `400 BadRequest: invalid pod request "ftp:web:80"`},
		{"GET", "services/web:81/proxy/", "", `503 ServiceUnavailable: no service port 81 found for service "web"`},
		{"GET", "services/web:c/proxy/", "", `503 ServiceUnavailable: no endpoints available for service "web"`},
		{"GET", "pods/web:81/proxy/", "", "503 ServiceUnavailable: error trying to reach service: dial 192.0.2.1:81: nobody is there"},
	} {
		t.Run(c.method+" "+c.path, func(t *testing.T) {
			req, err := http.NewRequest(c.method, host+c.path, strings.NewReader(c.body))
			if err != nil {
				t.Fatal(err)
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			body, err := io.ReadAll(resp.Body)
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("%d %s", resp.StatusCode, statusOr(body))
			if l := resp.Header.Get("Location"); l != "" {
				got += " -> " + l
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestProxyUpgrades speaks another protocol through the proxy, in both directions.
func TestProxyUpgrades(t *testing.T) {
	u, err := url.Parse(serveProxies(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"pods/web/proxy/up", "pods/https:web:443/proxy/up", "services/web:a/proxy/up"} {
		c, err := net.Dial("tcp", u.Host)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(c, "GET %s%s HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n", u.Path, path)
		r := bufio.NewReader(c)
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(c, "ping\n")
		line, err := r.ReadString('\n')
		if resp.StatusCode != http.StatusSwitchingProtocols || line != "heard ping\n" || err != nil {
			t.Errorf("%s: %s, %q, %v", path, resp.Status, line, err)
		}
		c.Close()
	}
}

// A pod that takes an upgrade and never answers holds the proxy no longer than the client waits.
func TestStalledProxyUpgradeEndsWithItsClient(t *testing.T) {
	pod, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer pod.Close()
	way := ordinary(func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, pod.Addr().String())
	})
	web := connectPod("web", "n1", "c")
	web.Status.PodIPs = []corev1.PodIP{{IP: "192.0.2.1"}}
	b := &connectBackend{objects: map[string]resource.Object{"pods/web": web}}
	done := make(chan struct{})
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(done)
		h, err := proxySubresource("PodProxyOptions", locatePod, way).Connect.Handler(r.Context(), b, "default", "web:80", nil, "/")
		if err != nil {
			t.Error(err)
			return
		}
		h.ServeHTTP(plain{w}, r)
	}))
	defer srv.Close()
	client, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(client, "GET /api/v1/pods/web:80/proxy/ HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	c, err := pod.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := http.ReadRequest(bufio.NewReader(c)); err != nil {
		t.Fatal(err)
	}
	client.Close()
	<-done
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the pod's connection is still open: %d, %v", n, err)
	}
}

// nodeBackend has one node.
type nodeBackend struct {
	resource.Backend // the rest is not called
	at               string
}

func (b nodeBackend) Node(context.Context, string) (*url.URL, http.RoundTripper, error) {
	u, err := url.Parse(b.at)
	return u, http.DefaultTransport, err
}

// TestProxiesKeepOffThisHost: a pod's status and a node's addresses, which nodes write, lead no proxy to what listens on this host
// alone or is link-local, as a cloud's metadata are.
func TestProxiesKeepOffThisHost(t *testing.T) {
	asked := false
	own := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked = true }))
	defer own.Close()
	_, portText, err := net.SplitHostPort(own.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.ParseInt(portText, 10, 32)
	if err != nil {
		t.Fatal(err)
	}
	port, way := int32(number), ordinary(nil)
	refuse := func(of string, where locate, b resource.Backend, id string, want string) {
		t.Helper()
		h, err := proxySubresource("ServiceProxyOptions", where, way).Connect.Handler(t.Context(), b, "default", id, nil, "/")
		if err == nil {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
		}
		if asked || err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: asked %v, %v, want %q", of, asked, err, want)
		}
		asked = false
	}
	for _, ip := range []string{"127.0.0.1", "::ffff:127.0.0.1", "::1", "0.0.0.0", "169.254.169.254", "fe80::1", "224.0.0.1"} {
		pod := connectPod("web", "n1", "c")
		pod.Status.PodIPs = []corev1.PodIP{{IP: ip}}
		meta := metav1.ObjectMeta{Name: "web", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}
		slice := &discoveryv1.EndpointSlice{ObjectMeta: meta, AddressType: discoveryv1.AddressTypeIPv4,
			Ports: []discoveryv1.EndpointPort{{Name: new("a"), Port: &port}},
			Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip},
				TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "web"}}}}
		b := &connectBackend{objects: map[string]resource.Object{"pods/web": pod, "endpointslices/web": slice}}
		refuse("the pod "+ip, locatePod, b, "web:"+portText, "address not allowed")
		refuse("the service of "+ip, locateService(corev1.IPv4Protocol), b, "web:a", "no endpoints available")
	}
	for _, host := range []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "169.254.169.254"} {
		refuse("the node "+host, locateNode, nodeBackend{at: "https://" + host + ":10250"}, "n1:"+portText, "address not allowed")
	}

	// A name that has another address by the time of the connection than it had before.
	if c, err := way.DialContext(t.Context(), "tcp", "localhost:"+portText); err == nil ||
		!strings.Contains(err.Error(), "address not allowed") {
		t.Errorf("by a name: %v, %v", c, err)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	crremote "k8s.io/cri-streaming/pkg/streaming/remotecommand"

	"github.com/mortise-dev/mortise/resource"
)

// connectBackend has some objects and one node, whose agent is a test server.
type connectBackend struct {
	resource.Backend // the rest is not called
	objects          map[string]resource.Object
	agent            *httptest.Server
}

func (b *connectBackend) Get(_ context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error) {
	if o, ok := b.objects[r.Resource+"/"+name]; ok && o.GetNamespace() == namespace {
		return o, nil
	}
	return nil, apierrors.NewNotFound(r, name)
}

func (b *connectBackend) List(_ context.Context, r schema.GroupResource, _ string) ([]resource.Object, error) {
	var out []resource.Object
	for key, o := range b.objects {
		if strings.HasPrefix(key, r.Resource+"/") {
			out = append(out, o)
		}
	}
	return out, nil
}

func (b *connectBackend) Node(_ context.Context, name string) (*url.URL, http.RoundTripper, error) {
	if name != "n1" {
		return nil, nil, apierrors.NewNotFound(schema.GroupResource{Resource: "nodes"}, name)
	}
	u, err := url.Parse(b.agent.URL)
	return u, b.agent.Client().Transport, err
}

// echo is a container runtime that says back what it hears.
type echo struct{}

func (echo) Exec(_ context.Context, id string, cmd []string, in io.Reader, out, _ io.WriteCloser, _ bool,
	_ <-chan crremote.TerminalSize) error {
	fmt.Fprintf(out, "%s %v ", id, cmd)
	if in != nil {
		io.Copy(out, in)
	}
	return nil
}

func (echo) Attach(_ context.Context, id string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan crremote.TerminalSize) error {
	fmt.Fprintf(out, "%s ", id)
	_, err := io.Copy(out, in)
	return err
}

func (echo) PortForward(_ context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	b := make([]byte, 5)
	if _, err := io.ReadFull(stream, b); err != nil {
		return err
	}
	_, err := fmt.Fprintf(stream, "%s %d %s", id, port, b)
	return err
}

// left says that an agent's reader of a log has left.
var left = make(chan bool, 1)

// newAgent is a node's agent: SPDY only, as an old one.
func newAgent(t *testing.T) *httptest.Server {
	var s streaming.Server
	serve := func(w http.ResponseWriter, r *http.Request, u string, err error) {
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		r.URL.Path = strings.TrimPrefix(u, "http://agent")
		s.ServeHTTP(w, r)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/exec/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		o, err := crremote.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		resp, err := s.GetExec(&runtimeapi.ExecRequest{ContainerId: r.PathValue("container"), Cmd: r.URL.Query()["command"],
			Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Tty: o.TTY})
		serve(w, r, resp.GetUrl(), err)
	})
	mux.HandleFunc("/attach/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		resp, err := s.GetAttach(&runtimeapi.AttachRequest{ContainerId: r.PathValue("container"), Stdin: true, Stdout: true})
		serve(w, r, resp.GetUrl(), err)
	})
	mux.HandleFunc("/portForward/{namespace}/{pod}", func(w http.ResponseWriter, r *http.Request) {
		resp, err := s.GetPortForward(&runtimeapi.PortForwardRequest{PodSandboxId: r.PathValue("pod")})
		serve(w, r, resp.GetUrl(), err)
	})
	mux.HandleFunc("/containerLogs/{namespace}/{pod}/{container}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("container") == "waiting" {
			http.Error(w, `container "waiting" in pod "two" is waiting to start: ContainerCreating`, http.StatusBadRequest)
			return
		}
		fmt.Fprintf(w, "%s %s\n", r.PathValue("container"), r.URL.RawQuery)
		if r.URL.Query().Has("follow") && r.URL.Query().Has("timestamps") { // until the reader has left
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
			left <- true
		}
	})
	mux.HandleFunc("/metrics", func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "up 1\n") })
	srv := httptest.NewTLSServer(mux)
	t.Cleanup(srv.Close)
	c := streaming.DefaultConfig
	c.BaseURL = &url.URL{Scheme: "http", Host: "agent"}
	var err error
	if s, err = streaming.NewServer(c, echo{}); err != nil {
		t.Fatal(err)
	}
	return srv
}

func connectPod(name, node string, containers ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{NodeName: node}}
	for _, c := range containers {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c})
	}
	return p
}

// plain is a writer as a pipeline's stages leave it: http.ResponseController sees through it, a type assertion does not.
type plain struct{ w http.ResponseWriter }

func (p plain) Header() http.Header         { return p.w.Header() }
func (p plain) Write(b []byte) (int, error) { return p.w.Write(b) }
func (p plain) WriteHeader(code int)        { p.w.WriteHeader(code) }
func (p plain) Unwrap() http.ResponseWriter { return p.w }

// serveConnect is an API server that knows these subresources only.
func serveConnect(t *testing.T) (*connectBackend, string) {
	b := &connectBackend{agent: newAgent(t), objects: map[string]resource.Object{
		"pods/one":      connectPod("one", "n1", "c"),
		"pods/two":      connectPod("two", "n1", "c", "waiting"),
		"pods/homeless": connectPod("homeless", "", "c"),
		"pods/lost":     connectPod("lost", "gone", "c"),
	}}
	subs := map[string]*resource.Connect{"services/proxy": serviceProxy(corev1.IPv4Protocol, nil).Connect,
		"nodes/proxy": nodeProxy(nil).Connect}
	for _, s := range podConnect(nil) {
		subs["pods/"+s.Name] = s.Connect
	}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := strings.SplitN(strings.Trim(r.URL.Path, "/"), "/", 4)
		if len(p) < 3 {
			http.NotFound(w, r)
			return
		}
		namespace, path := "default", ""
		if p[0] == "nodes" {
			namespace = ""
		}
		if len(p) == 4 {
			path = p[3]
		}
		sub := subs[p[0]+"/"+p[2]]
		o, err := sub.Options(r.URL.Query())
		if err != nil {
			writeStatus(w, err)
			return
		}
		h, err := sub.Handler(r.Context(), b, namespace, p[1], o, path)
		if err != nil {
			writeStatus(w, err)
			return
		}
		h.ServeHTTP(plain{w}, r)
	}))
	t.Cleanup(srv.Close)
	return b, srv.URL
}

func get(t *testing.T, u string) (int, string) {
	t.Helper()
	r, err := http.Get(u)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, statusOr(body)
}

// statusOr is a body as it is, or what it says as a status.
func statusOr(body []byte) string {
	var s metav1.Status
	if json.Unmarshal(body, &s) == nil && s.Kind == "Status" {
		return fmt.Sprintf("%s: %s", s.Reason, s.Message)
	}
	return string(body)
}

func TestPodConnectRefusals(t *testing.T) {
	_, host := serveConnect(t)
	for path, want := range map[string]string{
		"pods/nosuch/log":                `404 NotFound: pods "nosuch" not found`,
		"pods/one/log":                   "200 c \n",
		"pods/two/log":                   "400 BadRequest: a container name must be specified for pod two, choose one of: [c waiting]",
		"pods/two/log?container=waiting": `400 BadRequest: container "waiting" in pod "two" is waiting to start: ContainerCreating`,
		"pods/two/log?container=nosuch":  "400 BadRequest: container nosuch is not valid for pod two",
		"pods/homeless/log":              "204 ",
		"pods/lost/log":                  `404 NotFound: pods "gone" not found`,
		"pods/one/log?tailLines=x":       `400 BadRequest: strconv.ParseInt: parsing "x": invalid syntax`,
		"pods/one/log?tailLines=-1":      `422 Invalid: PodLogOptions "one" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0`,
		"pods/one/log?limitBytes=0":      `422 Invalid: PodLogOptions "one" is invalid: limitBytes: Invalid value: 0: must be greater than 0`,
		"pods/one/log?stream=Stdout":     `422 Invalid: PodLogOptions "one" is invalid: stream: Forbidden: may not be specified`,
		"pods/one/log?follow=true&tailLines=3&sinceTime=2026-01-02T03:04:05Z&timestamps=false": "200 c follow=true&sinceTime=2026-01-02T03%3A04%3A05Z&tailLines=3\n",
		"pods/one/exec?command=a&stdout=1": "400 BadRequest: Upgrade request required",
		"pods/nosuch/exec?command=a":       `404 NotFound: pods "nosuch" not found`,
		"pods/two/exec?command=a":          "400 BadRequest: a container name must be specified for pod two, choose one of: [c waiting]",
		"pods/homeless/attach":             "400 BadRequest: pod homeless does not have a host assigned",
		"pods/homeless/portforward":        "400 BadRequest: pod homeless does not have a host assigned",
		"pods/one/portforward?ports=x":     `400 BadRequest: strconv.ParseInt: parsing "x": invalid syntax`,
		"pods/one/proxy/":                  "400 BadRequest: address not allowed",
		"services/nosuch/proxy/":           `503 ServiceUnavailable: no endpoints available for service "nosuch"`,
		"services/nosuch:80/proxy/":        `404 NotFound: services "nosuch" not found`,
		"nodes/nosuch/proxy/":              `404 NotFound: nodes "nosuch" not found`,
		"nodes/n1/proxy/metrics":           "200 up 1\n",
	} {
		code, text := get(t, host+"/"+path)
		if got := fmt.Sprintf("%d %s", code, text); got != want {
			t.Errorf("%s:\n got %s\nwant %s", path, got, want)
		}
	}
}

func TestPodConnectStreams(t *testing.T) {
	_, host := serveConnect(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	config := &rest.Config{Host: host}
	for path, want := range map[string]string{
		"/pods/two/exec?container=c&command=a&command=b&stdin=true&stdout=true": "c [a b] hello",
		"/pods/one/attach?stdin=true&stdout=true":                               "c hello",
	} {
		u, err := url.Parse(host + path)
		if err != nil {
			t.Fatal(err)
		}
		overSPDY, err := remotecommand.NewSPDYExecutor(config, "POST", u)
		if err != nil {
			t.Fatal(err)
		}
		overWebSocket, err := remotecommand.NewWebSocketExecutor(config, "GET", u.String())
		if err != nil {
			t.Fatal(err)
		}
		for name, x := range map[string]remotecommand.Executor{"spdy": overSPDY, "websocket": overWebSocket} {
			var out bytes.Buffer
			if err := x.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out}); err != nil {
				t.Errorf("%s %s: %v", name, path, err)
			}
			if out.String() != want {
				t.Errorf("%s %s: %q, want %q", name, path, &out, want)
			}
		}
	}
}

func TestPodConnectForwards(t *testing.T) {
	_, host := serveConnect(t)
	u, err := url.Parse(host + "/pods/one/portforward")
	if err != nil {
		t.Fatal(err)
	}
	dialer, err := portforward.NewSPDYOverWebsocketDialerForStreaming(u, &rest.Config{Host: host})
	if err != nil {
		t.Fatal(err)
	}
	stop, ready, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	fw, err := portforward.NewOnAddressesForStreaming(dialer, []string{"127.0.0.1"}, []string{"0:80"}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- fw.ForwardPorts() }()
	select {
	case <-ready:
	case err := <-done:
		t.Fatal(err)
	}
	ports, err := fw.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "hello"); err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(c); err != nil || string(got) != "one 80 hello" {
		t.Errorf("%q, %v", got, err)
	}
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestServiceProxyChoosesRealPods(t *testing.T) {
	b, _ := serveConnect(t)
	pod := connectPod("one", "n1", "c")
	pod.Status.PodIPs = []corev1.PodIP{{IP: "10.1.2.3"}}
	b.objects["pods/one"] = pod
	b.objects["services/web"] = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 80}}}}
	name, port := "http", int32(8080)
	ref := &corev1.ObjectReference{Kind: "Pod", Namespace: "default", Name: "one"}
	b.objects["endpointslices/web-1"] = &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"169.254.169.254"}, TargetRef: ref}, // not the pod's own
			{Addresses: []string{"10.9.9.9"}},
			{Addresses: []string{"10.1.2.3"}, TargetRef: ref},
		},
	}
	for _, id := range []string{"web:80", "web:http"} {
		u, _, err := locateService(corev1.IPv4Protocol)(t.Context(), b, "default", id)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff("//10.1.2.3:8080", u.String()); diff != "" {
			t.Errorf("%s: %s", id, diff)
		}
	}
	if _, _, err := locateService(corev1.IPv4Protocol)(t.Context(), b, "default", "web:81"); !apierrors.IsServiceUnavailable(err) {
		t.Errorf("port 81: %v", err)
	}
	u, _, err := locatePod(t.Context(), b, "default", "https:one:443")
	if err != nil || u.String() != "https://10.1.2.3:443" {
		t.Errorf("pod: %v, %v", u, err)
	}
}

func TestBehind(t *testing.T) {
	for _, c := range []struct{ request, path, want string }{
		{"/api/v1/namespaces/default/pods/p/proxy", "", ""},
		{"/api/v1/namespaces/default/pods/p/proxy/", "", "/"},
		{"/api/v1/namespaces/default/pods/p/proxy/a/b/", "a/b", "/a/b/"},
		{"/elsewhere", "a/b", "/a/b"},
	} {
		if got := behind(c.request, "p", c.path); got != c.want {
			t.Errorf("%s: %q, want %q", c.request, got, c.want)
		}
	}
}

func FuzzLogOptions(f *testing.F) {
	f.Add("container=c&tailLines=3&sinceTime=2026-01-01T00:00:00Z&stream=All&follow")
	f.Fuzz(func(t *testing.T, text string) {
		q, err := url.ParseQuery(text)
		if err != nil {
			return
		}
		o, err := logOptions(q)
		if (o == nil) == (err == nil) {
			t.Fatal("neither options nor an error, or both")
		}
		if err == nil && o.(*corev1.PodLogOptions).SinceSeconds == nil && logQuery(o.(*corev1.PodLogOptions)).Has("sinceSeconds") {
			t.Error("a query out of nothing")
		}
	})
}

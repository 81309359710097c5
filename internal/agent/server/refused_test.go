// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// strange is a node that does as it is told.
type strange struct {
	*fakeNode
	pods []*corev1.Pod
	err  error
	code int32
}

func (n *strange) Pods() []*corev1.Pod { return append(n.fakeNode.Pods(), n.pods...) }

func (n *strange) Run(context.Context, podspec.Target, []string, time.Duration) ([]byte, int32, error) {
	return []byte("output"), n.code, n.err
}

func (n *strange) Exec(ctx context.Context, t podspec.Target, command []string, s podspec.Streams) (*url.URL, error) {
	if n.err != nil {
		return nil, n.err
	}
	return n.fakeNode.Exec(ctx, t, command, s)
}

func (n *strange) PortForward(ctx context.Context, t podspec.Target, ports []int32) (*url.URL, error) {
	if n.err != nil {
		return nil, n.err
	}
	return n.fakeNode.PortForward(ctx, t, ports)
}

// indexed is a node that finds a pod by itself.
type indexed struct{ *fakeNode }

func (n indexed) Pod(namespace, name string) *corev1.Pod {
	if p := n.Pods()[0]; p.Namespace == namespace && p.Name == name {
		return p
	}
	return nil
}

// TestAnswers: what cannot be done is answered with a status and words.
func TestAnswers(t *testing.T) {
	n := &strange{fakeNode: newFakeNode(t), pods: []*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Name: "more", Namespace: "default"},
		Spec: corev1.PodSpec{
			InitContainers:      []corev1.Container{{Name: "init"}},
			EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}},
		},
	}}}
	ask, plain, gone := open(n, Options{}), errors.New("broken"), apierrors.NewNotFound(corev1.Resource("containers"), "c")
	for _, c := range []struct {
		method, path string
		err          error
		code         int32
		want         int
		body         string
	}{
		{"GET", "/healthz", nil, 0, 200, "ok"},
		{"GET", "/containerLogs/default/p/c?tailLines=x", nil, 0, 400,
			`{"message": "read tailLines: strconv.ParseInt: parsing \"x\": invalid syntax"}` + "\n"},
		{"GET", "/containerLogs/default/p/c?tailLines=0&limitBytes=1&sinceSeconds=1", nil, 0, 200, "to stdout\nto stderr\n"},
		{"GET", "/containerLogs/default/p/c?tail=all", nil, 0, 200, "to stdout\nto stderr\n"},
		{"GET", "/containerLogs/default/p/c?limitBytes=0", nil, 0, 422, "{\"message\": \"Invalid request.\"}\n"},
		{"GET", "/containerLogs/default/p/c?sinceSeconds=0", nil, 0, 422, "{\"message\": \"Invalid request.\"}\n"},
		{"GET", "/containerLogs/default/more/init", nil, 0, 200, "to stdout\nto stderr\n"},
		{"GET", "/containerLogs/default/more/debug", nil, 0, 200, "to stdout\nto stderr\n"},
		{"POST", "/run/default/p/c?cmd=x", nil, 0, 200, "output"},
		{"POST", "/run/default/p/c?cmd=x", nil, 1, 500, "output"},
		{"POST", "/run/default/p/c?cmd=x", plain, 0, 500, "broken\n"},
		{"POST", "/run/default/p/c?cmd=x", gone, 0, 404, "containers \"c\" not found\n"},
		{"POST", "/run/default/nosuch/c?cmd=x", nil, 0, 404, "pod does not exist\n"},
		{"POST", "/run/default/p/other/c?cmd=x", nil, 0, 404, "pod does not exist\n"},
		{"POST", "/run/default/p/u1/c?cmd=x", nil, 0, 200, "output"},
		{"POST", "/exec/default/p/c?command=x&output=1", gone, 0, 404, "containers \"c\" not found\n"},
		{"POST", "/exec/default/p/c?command=x&output=1", plain, 0, 500, "broken\n"},
		{"POST", "/portForward/default/nosuch", nil, 0, 404, "pod does not exist\n"},
		{"POST", "/portForward/default/p/other", nil, 0, 404, "pod does not exist\n"},
		{"POST", "/portForward/default/p/u1", plain, 0, 500, "broken\n"},
		{"POST", "/portForward/default/p", nil, 0, 400, "Upgrade request required\n"},
	} {
		n.err, n.code = c.err, c.code
		if len(n.logged) == cap(n.logged) {
			<-n.logged
		}
		w := ask(c.method, c.path)
		if w.Code != c.want || w.Body.String() != c.body {
			t.Errorf("%s %s (%v): %d %q, want %d %q", c.method, c.path, c.err, w.Code, w.Body, c.want, c.body)
		}
	}
	r := httptest.NewRequest("GET", "/portForward/default/p?port=none", nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	w := httptest.NewRecorder()
	New(n, Options{}).portForward(w, r)
	if w.Code != 400 {
		t.Errorf("a port that is none: %d %s", w.Code, w.Body)
	}
	list := ask("GET", "/runningpods/").Body.String()
	want := `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"p","namespace":"default","uid":"u1"},` +
		`"spec":{"containers":[{"name":"c","image":"i","resources":{}}]},"status":{}}]}`
	if list != want {
		t.Errorf("what runs: %s", list)
	}
	if w := ask("GET", "/containerLogs/default/p/c"); w.Header().Get("Content-Type") != "text/plain" || w.Flushed {
		t.Errorf("a log is %v, flushed %t", w.Header(), w.Flushed)
	}
	found := open(indexed{n.fakeNode}, Options{})
	for path, want := range map[string]int{"p/c": 200, "p/u1/c": 200, "p/u2/c": 404, "q/c": 404} {
		if w := found("POST", "/run/default/"+path); w.Code != want {
			t.Errorf("a node that finds pods, %s: %d", path, w.Code)
		}
	}
}

// TestOldNames: a request for logs may use an older option, and a flag may be there without a value.
func TestOldNames(t *testing.T) {
	three := int64(3)
	for _, c := range []struct {
		query url.Values
		want  corev1.PodLogOptions
	}{
		{url.Values{"tail": {"3"}}, corev1.PodLogOptions{TailLines: &three}},
		{url.Values{"tail": {"4"}, "tailLines": {"3"}}, corev1.PodLogOptions{TailLines: &three}},
		{url.Values{"tail": {"all"}}, corev1.PodLogOptions{}},
		{url.Values{"tailLines": {"all"}}, corev1.PodLogOptions{}},
		{url.Values{"follow": {}, "previous": {""}, "timestamps": {"False"}}, corev1.PodLogOptions{Previous: true}},
	} {
		got, err := logOptions(c.query)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(&c.want, got); diff != "" {
			t.Errorf("%v: %s", c.query, diff)
		}
	}
	w := httptest.NewRecorder()
	n, err := (&logWriter{w: w, flush: true}).Write([]byte("line"))
	if n != 4 || err != nil || !w.Flushed {
		t.Errorf("wrote %d, %v, flushed %t", n, err, w.Flushed)
	}
	if _, err := (&logWriter{w: deaf{w}}).Write([]byte("line")); !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("a write to nobody: %v", err)
	}
}

// deaf is a client who is gone.
type deaf struct{ http.ResponseWriter }

func (deaf) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// TestWhatPathsMean: what the API server is asked about a request.
func TestWhatPathsMean(t *testing.T) {
	for method, want := range map[string]string{"GET": "get", "HEAD": "get", "POST": "create", "PUT": "update", "PATCH": "patch",
		"DELETE": "delete"} {
		if got := verb(method); got != want {
			t.Errorf("%s is %s, want %s", method, got, want)
		}
	}
	for path, want := range map[string][]string{
		"/stats": {"stats"}, "/stats/summary": {"stats"}, "/metrics/cadvisor": {"metrics"}, "/logs/x": {"log"}, "/checkpoint/a/b": {"checkpoint"},
		"/pods": {"pods", "proxy"}, "/runningpods/": {"pods", "proxy"}, "/healthz/ping": {"healthz", "proxy"}, "/configz": {"configz", "proxy"},
		"/statusz": {"statusz"}, "/flagz": {"configz"}, "/flagzabout": {"proxy"},
		"/exec/a/b/c": {"proxy"}, "/statsabout": {"proxy"}, "/": {"proxy"},
	} {
		if got := subresources(path); !slices.Equal(got, want) {
			t.Errorf("%s is %v, want %v", path, got, want)
		}
	}
	for header, want := range map[string]string{"Bearer abc": "abc", " bearer  abc ": "abc", "Basic abc": "", "": "", "abc": ""} {
		if got := bearer(&http.Request{Header: http.Header{"Authorization": {header}}}); got != want {
			t.Errorf("%q carries %q, want %q", header, got, want)
		}
	}
}

// TestReviewsAreKept: what the API server said of a user holds for as long as the configuration says; while it says nothing, nobody
// is let in.
func TestReviewsAreKept(t *testing.T) {
	config, reviews, now := kubeletconfig.Default(), fake.NewClientset(), time.Unix(1000, 0)
	var asked int
	var broken error
	var users []authorizationv1.SubjectAccessReviewSpec
	reviews.PrependReactor("create", "tokenreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenReview)
		r.Status.Authenticated = true
		r.Status.User = authenticationv1.UserInfo{Username: r.Spec.Token, UID: "7", Groups: []string{"g"},
			Extra: map[string]authenticationv1.ExtraValue{"k": {"v"}}}
		if r.Spec.Token == "broken" {
			return true, nil, errors.New("no answer")
		}
		return true, r, nil
	})
	reviews.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, runtime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		asked++
		users = append(users, r.Spec)
		r.Status.Allowed = r.Spec.User == "may"
		return true, r, broken
	})
	s := New(newFakeNode(t), Options{Kubelet: config, Effective: config, Reviews: reviews, Clock: func() time.Time { return now }})
	ask := func(token string) (int, string, int) {
		asked = 0
		r, w := httptest.NewRequest("GET", "/stats/summary", nil), httptest.NewRecorder()
		r.Header.Set("Authorization", "Bearer "+token)
		s.ServeHTTP(w, r)
		return w.Code, w.Body.String(), asked
	}
	const forbidden = "Forbidden (user=not, verb=get, resource=nodes, subresource(s)=[stats])\n"
	for _, c := range []struct {
		token string
		after time.Duration
		want  int
		asked int
	}{
		{"may", 0, 200, 1}, {"may", time.Minute, 200, 0}, {"may", 5 * time.Minute, 200, 1},
		{"not", 0, 403, 1}, {"not", 20 * time.Second, 403, 0}, {"not", 11 * time.Second, 403, 1},
	} {
		now = now.Add(c.after)
		code, body, n := ask(c.token)
		if code != c.want || n != c.asked || code == 403 && body != forbidden {
			t.Errorf("%s after %s: %d %q, asked %d times", c.token, c.after, code, body, n)
		}
	}
	want := authorizationv1.SubjectAccessReviewSpec{
		User: "may", UID: "7", Groups: []string{"g"}, Extra: map[string]authorizationv1.ExtraValue{"k": {"v"}},
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "get", Version: "v1", Resource: "nodes", Subresource: "stats", Name: "n1"},
	}
	if diff := cmp.Diff(want, users[0]); diff != "" {
		t.Errorf("asked about %s", diff)
	}
	if code, body, _ := ask("broken"); code != 401 || body != "Unauthorized\n" {
		t.Errorf("a token about which nothing is known: %d %q", code, body)
	}
	broken, now = errors.New("no answer"), now.Add(time.Hour)
	const unknown = "Authorization error (user=may, verb=get, resource=nodes, subresource(s)=[stats])\n"
	if code, body, _ := ask("may"); code != 500 || body != unknown {
		t.Errorf("a user about whom nothing is known: %d %q", code, body)
	}
}

// TestCertificates: those that an authority signed, itself or through another, that the node knows.
func TestCertificates(t *testing.T) {
	main, more, stranger := newAuthority(t), newAuthority(t), newAuthority(t)
	client := func(a *authority, name string) *x509.Certificate {
		c, _ := a.sign(t, &x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		return c
	}
	between := &authority{}
	between.cert, between.key = main.sign(t, &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		Subject: pkix.Name{CommonName: "between"}})
	const known = "kube-apiserver"
	both := Options{ClientCAs: main.pool(), MoreClientCAs: more.pool()}
	kubelet := both
	kubelet.Kubelet = kubeletconfig.Default()
	verified := [][]*x509.Certificate{{client(main, known)}}
	for name, c := range map[string]struct {
		o     Options
		certs []*x509.Certificate
		want  int
	}{
		"the first":                          {both, []*x509.Certificate{client(main, known)}, 200},
		"the second":                         {both, []*x509.Certificate{client(more, known)}, 200},
		"the second, where there is none":    {Options{ClientCAs: main.pool()}, []*x509.Certificate{client(more, known)}, 401},
		"through another":                    {both, []*x509.Certificate{client(between, known), between.cert}, 200},
		"through another that is not there":  {both, []*x509.Certificate{client(between, known)}, 401},
		"a stranger":                         {both, []*x509.Certificate{client(stranger, known)}, 401},
		"nobody's, where TLS has to verify":  {Options{}, []*x509.Certificate{client(main, known)}, 401},
		"another user":                       {both, []*x509.Certificate{client(main, "jane")}, 403},
		"with a kubelet configuration":       {kubelet, []*x509.Certificate{client(main, known)}, 200},
		"another user with a configuration":  {kubelet, []*x509.Certificate{client(main, "jane")}, 403},
		"a stranger with a configuration":    {kubelet, []*x509.Certificate{client(stranger, known)}, 401},
		"no certificate, with configuration": {kubelet, nil, 401},
	} {
		r, w := httptest.NewRequest("GET", "/healthz", nil), httptest.NewRecorder()
		r.TLS = &tls.ConnectionState{PeerCertificates: c.certs}
		New(newFakeNode(t), c.o).ServeHTTP(w, r)
		if w.Code != c.want || (w.Body.String() == "ok") != (c.want == 200) {
			t.Errorf("%s: %d %q, want %d", name, w.Code, w.Body, c.want)
		}
	}
	r, w := httptest.NewRequest("GET", "/healthz", nil), httptest.NewRecorder()
	r.TLS = &tls.ConnectionState{PeerCertificates: verified[0], VerifiedChains: verified}
	if New(newFakeNode(t), Options{}).ServeHTTP(w, r); w.Code != 200 {
		t.Errorf("one that TLS has verified: %d", w.Code)
	}
}

// TestServeEnds: a listener that fails is an error, an end that was asked for is none, and both end the streams.
func TestServeEnds(t *testing.T) {
	for _, asked := range []bool{false, true} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s, ctx, cancel := New(newFakeNode(t), Options{}), t.Context(), func() {}
		if asked {
			ctx, cancel = context.WithCancel(ctx)
		} else {
			l.Close()
		}
		here, there := net.Pipe()
		s.closed.add(here)
		cancel()
		if err := s.Serve(ctx, l); (err == nil) != asked {
			t.Errorf("asked to end %t: %v", asked, err)
		}
		if _, err := there.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a stream is open: %v", err)
		}
		late, other := net.Pipe()
		s.closed.add(late)
		if _, err := other.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a stream that comes too late is open: %v", err)
		}
	}
}

// TestTakenOver: connections that are taken over are known until they are closed.
func TestTakenOver(t *testing.T) {
	var s streams
	here, _ := net.Pipe()
	if c := s.add(here); c.Close() != nil || len(s.conns) != 0 {
		t.Errorf("%d connections are known", len(s.conns))
	}
	w := httptest.NewRecorder()
	watched := s.watch(w)
	if err := http.NewResponseController(watched).Flush(); err != nil || !w.Flushed {
		t.Errorf("flushed %t, %v", w.Flushed, err)
	}
	if _, _, err := watched.(http.Hijacker).Hijack(); !errors.Is(err, http.ErrNotSupported) {
		t.Errorf("a connection that cannot be taken over: %v", err)
	}
}

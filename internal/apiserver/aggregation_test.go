// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/kinds"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

var (
	apiservices = schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}
	services    = schema.GroupResource{Resource: "services"}
)

// aggregating is a server over TLS with one aggregated server, which responds as the test defines.
type aggregating struct {
	*kept
	t       *testing.T
	url     string
	client  *http.Client // the administrator's, HTTP/1.1
	jane    *http.Client // without permissions
	ca      []byte       // of the aggregated server
	tls     *tls.Config  // the administrator's
	port    int32
	ledger  *extension.Ledger
	rotated func(tls.Certificate)

	mu     sync.Mutex
	answer http.HandlerFunc
	asked  []*http.Request // below things
}

func (a *aggregating) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.Trim(r.URL.Path, "/") == "apis/agg.io/v1" && r.URL.RawQuery == "" {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"agg.io/v1","resources":[]}`)
		return
	}
	if !strings.HasPrefix(r.URL.Path, "/apis/agg.io/v1/") {
		http.NotFound(w, r)
		return
	}
	a.mu.Lock()
	a.asked = append(a.asked, r)
	answer := a.answer
	a.mu.Unlock()
	answer(w, r)
}

// on sets the handler of the aggregated server.
func (a *aggregating) on(f http.HandlerFunc) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.answer, a.asked = f, nil
}

// last returns the newest request.
func (a *aggregating) last() *http.Request {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.asked) == 0 {
		return nil
	}
	return a.asked[len(a.asked)-1]
}

func startAggregating(t *testing.T, change func(*apiserver.Options)) *aggregating {
	t.Helper()
	m, err := serving.LoadOrCreate("", []string{"127.0.0.1", "agg.default.svc"}, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a := &aggregating{t: t, ledger: extension.NewLedger(clock.RealClock{}), ca: m.CA.CertPEM,
		answer: func(http.ResponseWriter, *http.Request) {}}
	behind := httptest.NewUnstartedServer(a)
	behind.EnableHTTP2 = true
	behind.TLS = &tls.Config{Certificates: []tls.Certificate{m.Server.TLS()}, ClientAuth: tls.RequestClientCert}
	behind.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	behind.StartTLS()
	t.Cleanup(behind.Close)
	_, port, _ := net.SplitHostPort(behind.Listener.Addr().String())
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	a.port = int32(number)

	var held sync.Map
	own := m.FrontProxyClient.TLS()
	held.Store("", &own)
	s := store.New(memory.Open(memory.Options{}))
	o := apiserver.Options{Store: s, Kinds: kinds.All(kinds.Options{}), Material: m, Ledger: a.ledger,
		Shutdown: apiserver.Shutdown{Finish: time.Second},
		Aggregation: apiserver.Aggregation{
			Certificate: func() *tls.Certificate { c, _ := held.Load(""); return c.(*tls.Certificate) },
		}}
	if change != nil {
		change(&o)
	}
	srv, err := apiserver.New(o)
	if err != nil {
		t.Fatal(err)
	}
	a.rotated = func(c tls.Certificate) { held.Store("", &c); srv.Aggregator().Rotated() }
	a.kept = &kept{srv, s}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	a.url = "https://" + l.Addr().String()
	as := func(p *serving.Pair) *http.Client {
		c, err := rest.HTTPClientFor(&rest.Config{TLSClientConfig: rest.TLSClientConfig{
			CAData: m.CA.CertPEM, CertData: p.CertPEM, KeyData: p.KeyPEM, NextProtos: []string{"http/1.1"},
		}})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	a.client, a.tls = as(m.Admin), &tls.Config{RootCAs: m.CA.Pool(), Certificates: []tls.Certificate{m.Admin.TLS()}}
	jane, err := m.Client("jane", []string{"devs"}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	a.jane = as(jane)
	return a
}

// register creates the service and its registration.
func (a *aggregating) register(change func(*apiregistrationv1.APIService)) {
	a.t.Helper()
	makeObject(a.t, a.kept, services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agg"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1",
		}})
	r := &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: "v1.agg.io"}, Spec: apiregistrationv1.APIServiceSpec{
		Group: "agg.io", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 10, CABundle: a.ca,
		Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "agg", Port: &a.port},
	}}
	if change != nil {
		change(r)
	}
	makeObject(a.t, a.kept, apiservices, r)
}

// reason waits for the condition of the registration to have a reason.
func (a *aggregating) reason(want string) {
	a.t.Helper()
	a.until(a.t, "apiregistration.k8s.io/", func() bool {
		obj, err := a.Backend().Get(a.t.Context(), apiservices, "", "v1.agg.io")
		if err != nil {
			a.t.Fatal(err)
		}
		c := obj.(*apiregistrationv1.APIService).Status.Conditions
		return len(c) == 1 && c[0].Reason == want && (c[0].Status == apiregistrationv1.ConditionTrue) == (want == "Passed" || want == "Local")
	})
	for { // the stored condition takes effect for requests a moment later
		changed := a.Aggregator().Changed()
		all := a.Aggregator().Services()
		if want == "Local" && len(all) == 0 || len(all) == 1 && all[0].Reason == want {
			return
		}
		<-changed
	}
}

// say sends a request to the server.
func (a *aggregating) say(c *http.Client, method, path string, headers ...string) (*http.Response, string) {
	a.t.Helper()
	r, err := http.NewRequestWithContext(a.t.Context(), method, a.url+path, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	resp, err := c.Do(r)
	if err != nil {
		a.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		a.t.Fatalf("%s %s: read: %v", method, path, err)
	}
	return resp, string(b)
}

const things = "/apis/agg.io/v1/namespaces/default/things"

// A request is forwarded in the name of its user only. The server's own errors name the registration.
func TestAggregatedRequest(t *testing.T) {
	a := startAggregating(t, nil)
	if resp, _ := a.say(a.client, "GET", things); resp.StatusCode != http.StatusNotFound {
		t.Errorf("before: %d", resp.StatusCode)
	}
	a.register(nil)
	a.reason("Passed")
	a.on(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		_ = json.NewEncoder(w).Encode(map[string]any{
			"header": r.Header, "uri": r.RequestURI, "cn": r.TLS.PeerCertificates[0].Subject.CommonName, "name": r.TLS.ServerName, "proto": r.Proto,
		})
	})
	resp, body := a.say(a.client, "GET", things+"?b=2&a=%2F", "X-Remote-User", "evil", "X-Remote-Extra-Foo", "x", "Authorization",
		"Basic eA==", "X-Mine", "1", "X-Forwarded-For", "1.2.3.4",
		"Audit-Id", "7")
	var got struct {
		Header               http.Header
		URI, CN, Name, Proto string
	}
	if err := json.Unmarshal([]byte(body), &got); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	for _, h := range []string{"User-Agent", "X-Remote-Extra-Authentication.kubernetes.io%2fcredential-Id", "X-Remote-Uid",
		"Accept-Encoding"} {
		delete(got.Header, h)
	}
	host := "127.0.0.1:" + strconv.Itoa(int(a.port))
	if d := cmp.Diff(http.Header{
		"X-Remote-User": {"kubernetes-admin"}, "X-Remote-Group": {"system:masters", "system:authenticated"}, "X-Mine": {"1"},
		"X-Forwarded-For":  {"1.2.3.4, 127.0.0.1"},
		"X-Forwarded-Host": {host}, "X-Forwarded-Proto": {"https"}, "X-Forwarded-Uri": {things}, "Audit-Id": {"7"},
	}, got.Header); d != "" {
		t.Errorf("headers: %s", d)
	}
	if got.CN != "front-proxy-client" || got.Name != "agg.default.svc" || got.URI != things+"?a=%2F&b=2" || got.Proto != "HTTP/2.0" {
		t.Errorf("sent on as %+v", got)
	}
	if resp.Header.Get("Access-Control-Allow-Origin") != "" {
		t.Error("headers came through that are this server's to say")
	}

	a.on(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "https://elsewhere/", http.StatusFound)
	})
	if resp, body := a.say(a.client, "GET", things); resp.StatusCode != http.StatusBadGateway ||
		!strings.Contains(body, "redirect this request, which is not permitted") {
		t.Errorf("redirect: %d %s", resp.StatusCode, body)
	}
	// Requests that authorization rejects do not reach the aggregated server.
	a.on(func(http.ResponseWriter, *http.Request) {})
	if resp, _ := a.say(a.jane, "GET", things); resp.StatusCode != http.StatusForbidden || a.last() != nil {
		t.Errorf("forbidden: %d, asked %v", resp.StatusCode, a.last())
	}
	// This server does not check whether the namespace exists.
	if resp, _ := a.say(a.client, "POST", "/apis/agg.io/v1/namespaces/nowhere/things"); resp.StatusCode != http.StatusOK || a.last() == nil {
		t.Errorf("create in a namespace that is not there: %d", resp.StatusCode)
	}
	// The ledger records the calls.
	for _, e := range a.ledger.Snapshot() {
		if e.Point == extension.AggregatedAPI && (e.Name != "v1.agg.io" || e.Calls < 4 || e.State != extension.OK) {
			t.Errorf("ledger: %+v", e)
		}
	}
	if err := a.Backend().Delete(t.Context(), services, "default", "agg", nil); err != nil {
		t.Fatal(err)
	}
	a.reason("ServiceNotFound")
	if resp, body := a.say(a.client, "GET", things); resp.StatusCode != http.StatusServiceUnavailable || body != "service unavailable\n" ||
		resp.Header.Get("Warning") != `299 - "APIService v1.agg.io: ServiceNotFound"` {
		t.Errorf("without a service: %d %q %q", resp.StatusCode, body, resp.Header.Get("Warning"))
	}
	if err := a.Backend().Delete(t.Context(), apiservices, "", "v1.agg.io", nil); err != nil {
		t.Fatal(err)
	}
	if resp, _ := a.say(a.client, "GET", things); resp.StatusCode != http.StatusNotFound {
		t.Errorf("after: %d", resp.StatusCode)
	}
}

// A long-running request has no deadline, and is flushed as data arrives. A short one has a deadline, and takes no
// seats from other requests meanwhile. The aggregated server notices a client that leaves.
func TestAggregatedTimes(t *testing.T) {
	one := 1
	a := startAggregating(t, func(o *apiserver.Options) {
		o.FlowControl = apiserver.FlowControl{RequestTimeout: 300 * time.Millisecond, MaxReads: &one, MaxWrites: &one}
	})
	a.register(nil)
	a.reason("Passed")
	left := make(chan struct{}, 10)
	begun := make(chan struct{}, 10)
	a.on(func(_ http.ResponseWriter, r *http.Request) {
		begun <- struct{}{}
		<-r.Context().Done()
		left <- struct{}{}
	})
	answered := make(chan string, 4)
	for range 4 {
		go func() {
			resp, body := a.say(a.client, "GET", things)
			answered <- fmt.Sprintf("%d %v %s", resp.StatusCode, strings.Contains(body, `"reason":"Timeout"`), resp.Header.Get("Warning"))
		}()
	}
	for range 4 {
		<-begun
	}
	if resp, _ := a.say(a.client, "GET", "/api/v1/namespaces"); resp.StatusCode != http.StatusOK {
		t.Errorf("another group meanwhile: %d", resp.StatusCode)
	}
	for range 4 {
		if got := <-answered; got != `504 true 299 - "APIService v1.agg.io: no answer in time"` {
			t.Errorf("out of time: %s", got)
		}
		<-left
	}

	next := make(chan string)
	a.on(func(w http.ResponseWriter, r *http.Request) {
		for {
			select {
			case s := <-next:
				_, _ = io.WriteString(w, s)
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				left <- struct{}{}
				return
			}
		}
	})
	ctx, cancel := context.WithCancel(t.Context())
	r, err := http.NewRequestWithContext(ctx, "GET", a.url+things+"?watch=true", nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() { next <- "first\n" }()
	resp, err := a.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(resp.Body)
	read := func(want string) {
		t.Helper()
		if !lines.Scan() || lines.Text() != want {
			t.Fatalf("read %q, %v; want %q", lines.Text(), lines.Err(), want)
		}
	}
	read("first")
	after := time.NewTimer(time.Second) // longer than short requests may take
	<-after.C
	next <- "second\n"
	read("second")
	cancel()
	<-left
	resp.Body.Close()
}

// An upgraded connection is forwarded from its first byte on, in the user's name, and ends with the server.
func TestAggregatedUpgrade(t *testing.T) {
	a := startAggregating(t, nil)
	a.register(nil)
	a.reason("Passed")
	a.on(func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		fmt.Fprintf(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\nX-User: %s\r\n\r\n", r.Header.Get("Upgrade"),
			r.Header.Get("X-Remote-User"))
		_, _ = io.Copy(c, rw)
	})
	u, err := url.Parse(a.url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.Dial("tcp", u.Host, a.tls)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET %s/x/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Remote-User: evil\r\n\r\nearly\n",
		things)
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	if resp.StatusCode != http.StatusSwitchingProtocols || resp.Header.Get("X-User") != "kubernetes-admin" ||
		resp.Header.Get("Upgrade") != "SPDY/3.1" {
		t.Fatalf("upgrade: %d %v", resp.StatusCode, resp.Header)
	}
	fmt.Fprint(c, "later\n")
	for _, want := range []string{"early\n", "later\n"} {
		if got, err := r.ReadString('\n'); got != want {
			t.Fatalf("read %q, %v; want %q", got, err, want)
		}
	}
}

// A server that accepts an upgrade and never responds uses no resources after its client has left.
func TestAggregatedUpgradeStalls(t *testing.T) {
	a := startAggregating(t, nil)
	a.register(nil)
	a.reason("Passed")
	came, left := make(chan struct{}), make(chan error, 1)
	a.on(func(_ http.ResponseWriter, r *http.Request) {
		close(came)
		<-r.Context().Done() // the server has seen that its client, the proxy, left
		left <- context.Cause(r.Context())
	})
	u, err := url.Parse(a.url)
	if err != nil {
		t.Fatal(err)
	}
	c, err := tls.Dial("tcp", u.Host, a.tls)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, "GET %s/x/exec HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: SPDY/3.1\r\n\r\n", things)
	<-came
	c.Close()
	if err := <-left; err == nil {
		t.Error("the proxy has not left")
	}
}

// A bundle without certificates, or with other ones than the server's, only makes the server unavailable. It is
// available again after a repair.
func TestAggregatedTrust(t *testing.T) {
	a := startAggregating(t, nil)
	a.register(func(r *apiregistrationv1.APIService) { r.Spec.CABundle = []byte("nonsense") })
	a.reason("FailedDiscoveryCheck")
	if resp, _ := a.say(a.client, "GET", things); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("bad bundle: %d", resp.StatusCode)
	}
	change := func(f func(*apiregistrationv1.APIService)) {
		t.Helper()
		if _, err := a.Backend().Update(t.Context(), apiservices, "", "v1.agg.io", false, func(obj resource.Object) error {
			f(obj.(*apiregistrationv1.APIService))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	change(func(r *apiregistrationv1.APIService) { r.Spec.CABundle = nil; r.Spec.InsecureSkipTLSVerify = true })
	a.reason("Passed")
	change(func(r *apiregistrationv1.APIService) { r.Spec.CABundle = a.ca; r.Spec.InsecureSkipTLSVerify = false })
	if resp, _ := a.say(a.client, "GET", things); resp.StatusCode != http.StatusOK {
		t.Errorf("good bundle: %d", resp.StatusCode)
	}
	// a new front-proxy certificate is used from then on
	m, err := serving.LoadOrCreate("", nil, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	a.rotated(m.Admin.TLS())
	a.on(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	})
	if _, body := a.say(a.client, "GET", things); body != "kubernetes-admin" {
		t.Errorf("after the rotation we are %q", body)
	}
	// a registration without a service is local
	change(func(r *apiregistrationv1.APIService) { r.Spec.Service, r.Spec.CABundle = nil, nil })
	a.reason("Local")
	if resp, _ := a.say(a.client, "GET", things); resp.StatusCode != http.StatusNotFound {
		t.Errorf("local: %d", resp.StatusCode)
	}
}

// The spec of a registration that follows a definition is restored. Without the label it stays unchanged, and with a
// service its server gets the requests.
func TestRegistrationsAreKept(t *testing.T) {
	a := startAggregating(t, nil)
	makeObject(t, a.kept, schema.GroupResource{Group: "apiextensions.k8s.io", Resource: "customresourcedefinitions"}, definition("agg.io"))
	get := func() *apiregistrationv1.APIService {
		obj, err := a.Backend().Get(t.Context(), apiservices, "", "v1.agg.io")
		if apierrors.IsNotFound(err) {
			return nil
		}
		return obj.(*apiregistrationv1.APIService)
	}
	a.until(t, "apiregistration.k8s.io/", func() bool { return get() != nil })
	change := func(f func(*apiregistrationv1.APIService)) {
		t.Helper()
		if _, err := a.Backend().Update(t.Context(), apiservices, "", "v1.agg.io", false, func(obj resource.Object) error {
			f(obj.(*apiregistrationv1.APIService))
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	change(func(r *apiregistrationv1.APIService) { r.Spec.GroupPriorityMinimum = 7 })
	a.until(t, "apiregistration.k8s.io/", func() bool { return get().Spec.GroupPriorityMinimum == 1000 })
	if resp, body := a.say(a.client, "GET", "/apis/agg.io/v1/things"); resp.StatusCode != http.StatusOK ||
		!strings.Contains(body, "ThingList") {
		t.Errorf("the definition's: %d %s", resp.StatusCode, body)
	}
	makeObject(t, a.kept, services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "agg"}, Spec: corev1.ServiceSpec{
		Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1",
	}})
	change(func(r *apiregistrationv1.APIService) {
		delete(r.Labels, "kube-aggregator.kubernetes.io/automanaged")
		r.Spec.Service, r.Spec.CABundle = &apiregistrationv1.ServiceReference{Namespace: "default", Name: "agg", Port: &a.port}, a.ca
	})
	a.reason("Passed")
	a.on(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "the other's") })
	if _, body := a.say(a.client, "GET", "/apis/agg.io/v1/things"); body != "the other's" {
		t.Errorf("with a service: %s", body)
	}
	if err := a.Backend().Delete(t.Context(), apiservices, "", "v1.agg.io", nil); err != nil {
		t.Fatal(err)
	}
	a.until(t, "apiregistration.k8s.io/", func() bool { r := get(); return r != nil && r.Spec.Service == nil })
	if resp, body := a.say(a.client, "GET", "/apis/agg.io/v1/things"); resp.StatusCode != http.StatusOK ||
		!strings.Contains(body, "ThingList") {
		t.Errorf("the definition's again: %d %s", resp.StatusCode, body)
	}
}

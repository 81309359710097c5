// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"crypto/tls"
	"encoding/base64"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/externalmetrics"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
)

var externalRoutes = schema.GroupResource{Group: "extension.mortise.dev", Resource: "externalmetricsroutes"}

const externalRoot = "/apis/external.metrics.k8s.io/v1beta1"

// externalServer is a server of external metrics that responds with its name.
type externalServer struct {
	name string
	port int32
	ca   []byte
	stop func()

	mu    sync.Mutex
	asked []*http.Request // for metrics
	lists bool            // false: discovery is nonsense
}

func (e *externalServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	switch {
	case strings.TrimSuffix(r.URL.Path, "/") == externalRoot && e.lists:
		_, _ = fmt.Fprintf(w, `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"external.metrics.k8s.io/v1beta1","resources":[
			{"name":"externalmetrics","singularName":"","namespaced":true,"kind":"ExternalMetricValueList","verbs":["get"]},
			{"name":%q,"singularName":"","namespaced":true,"kind":"ExternalMetricValueList","verbs":["get"]}]}`, "of-"+e.name)
	case strings.TrimSuffix(r.URL.Path, "/") == externalRoot:
		_, _ = io.WriteString(w, `{"kind":`)
	case strings.HasPrefix(r.URL.Path, externalRoot+"/namespaces/"):
		e.asked = append(e.asked, r)
		_, _ = fmt.Fprintf(w, `{"server":%q,"selector":%q}`, e.name, r.URL.Query().Get("labelSelector"))
	default:
		http.NotFound(w, r)
	}
}

// change changes how the server responds.
func (e *externalServer) change(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	f()
}

// last returns the newest request for a metric; nil: none.
func (e *externalServer) last() *http.Request {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.asked) == 0 {
		return nil
	}
	return e.asked[len(e.asked)-1]
}

// routed is a server that follows routes.
type routed struct{ *aggregating }

func startRouted(t *testing.T) *routed {
	t.Helper()
	kind, err := externalmetrics.Kind()
	if err != nil {
		t.Fatal(err)
	}
	return &routed{startAggregating(t, func(o *apiserver.Options) {
		o.Kinds, o.Aggregation.ExternalMetricsRoutes = append(o.Kinds, kind), true
	})}
}

// behind starts a server of external metrics behind a Service of its name.
func (a *routed) behind(name string) *externalServer {
	a.t.Helper()
	m, err := serving.LoadOrCreate("", []string{name + ".default.svc"}, serving.Options{})
	if err != nil {
		a.t.Fatal(err)
	}
	e := &externalServer{name: name, ca: m.CA.CertPEM, lists: true}
	s := httptest.NewUnstartedServer(e)
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{m.Server.TLS()}, ClientAuth: tls.RequestClientCert}
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo)
	s.StartTLS()
	e.stop = sync.OnceFunc(s.Close)
	a.t.Cleanup(e.stop)
	_, port, _ := net.SplitHostPort(s.Listener.Addr().String())
	number, err := strconv.Atoi(port)
	if err != nil {
		a.t.Fatal(err)
	}
	e.port = int32(number)
	makeObject(a.t, a.kept, services, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "127.0.0.1"}})
	return e
}

// route creates a route to a server.
func (a *routed) route(to *externalServer, spec string) {
	a.t.Helper()
	u := &unstructured.Unstructured{}
	text := fmt.Sprintf("apiVersion: extension.mortise.dev/v1alpha1\nkind: ExternalMetricsRoute\nmetadata: {name: %s}\n"+
		"spec: {%s, service: {namespace: default, name: %s, port: %d}, caBundle: %s}", to.name, spec, to.name, to.port,
		base64.StdEncoding.EncodeToString(to.ca))
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		a.t.Fatal(err)
	}
	makeObject(a.t, a.kept, externalRoutes, u)
	a.available(to.name, "Passed")
}

// available waits for the condition of a route to have a reason, which takes effect for requests a moment later.
func (a *routed) available(name, reason string) {
	a.t.Helper()
	a.until(a.t, "extension.mortise.dev/", func() bool {
		obj, err := a.Backend().Get(a.t.Context(), externalRoutes, "", name)
		if err != nil {
			a.t.Fatal(err)
		}
		all, _, err := unstructured.NestedSlice(obj.(*unstructured.Unstructured).Object, "status", "conditions")
		if err != nil {
			a.t.Fatal(err)
		}
		for _, c := range all {
			if c := c.(map[string]any); c["type"] == "Available" && c["reason"] == reason {
				return (c["status"] == "True") == (reason == "Passed")
			}
		}
		return false
	})
	want := "ExternalMetricsRoute " + name + ": "
	if reason == "Passed" {
		a.inTime(func() bool {
			resp, _ := a.say(a.client, "GET", externalRoot)
			return !strings.Contains(strings.Join(resp.Header.Values("Warning"), ""), want)
		})
	}
}

// inTime repeats a check after each change of the servers that requests go to.
func (a *routed) inTime(ok func() bool) {
	a.t.Helper()
	for {
		changed := a.Aggregator().Changed()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-a.t.Context().Done():
			a.t.Fatal(a.t.Context().Err())
		}
	}
}

// wants sends a request for a metric, and wants the response of a server.
func (a *routed) wants(server, namespace, metric string) {
	a.t.Helper()
	resp, body := a.say(a.client, "GET", externalRoot+"/namespaces/"+namespace+"/"+metric+"?labelSelector=a%3Db")
	if resp.StatusCode != http.StatusOK || body != `{"server":"`+server+`","selector":"a=b"}` {
		a.t.Errorf("%s in %s: %d %s, not from %s", metric, namespace, resp.StatusCode, body, server)
	}
}

// registerDefault makes a server that of the APIService.
func (a *routed) registerDefault(of *externalServer) {
	a.t.Helper()
	makeObject(a.t, a.kept, apiservices, &apiregistrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: externalmetrics.Name}, Spec: apiregistrationv1.APIServiceSpec{
			Group: externalmetrics.Group, Version: externalmetrics.Version, GroupPriorityMinimum: 200, VersionPriority: 10, CABundle: of.ca,
			Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: of.name, Port: &of.port},
		},
	})
	for {
		changed := a.Aggregator().Changed()
		if all := a.Aggregator().Services(); len(all) == 1 && all[0].Available {
			return
		}
		<-changed
	}
}

// TestExternalMetricsRoutes sends requests for metrics to two servers by routes, and to a third one by the APIService.
func TestExternalMetricsRoutes(t *testing.T) {
	a := startRouted(t)
	if resp, _ := a.say(a.client, "GET", externalRoot+"/namespaces/shop/queue"); resp.StatusCode != http.StatusNotFound {
		t.Errorf("without servers: %d", resp.StatusCode)
	}
	keda, team, plain := a.behind("keda"), a.behind("team"), a.behind("plain")
	a.route(keda, `metrics: ["s*-kafka-*"]`)
	a.wants("keda", "shop", "s0-kafka-lag")
	if resp, _ := a.say(a.client, "GET", externalRoot+"/namespaces/shop/queue"); resp.StatusCode != http.StatusNotFound {
		t.Errorf("a metric without a server: %d", resp.StatusCode)
	}
	a.registerDefault(plain)
	a.route(team, `namespaces: ["team-*"], priority: 10`)
	a.wants("keda", "shop", "s0-kafka-lag")
	a.wants("plain", "shop", "queue")
	a.wants("team", "team-a", "s0-kafka-lag")
	a.wants("team", "team-a", "queue")

	// The server gets the user by the front proxy's headers, and its certificate.
	if resp, body := a.say(a.jane, "GET", externalRoot+"/namespaces/shop/s0-kafka-lag"); resp.StatusCode != http.StatusForbidden {
		t.Errorf("a user without the right: %d %s", resp.StatusCode, body)
	}
	a.wants("keda", "shop", "s0-kafka-lag")
	r := keda.last()
	if r.Header.Get("X-Remote-User") != "kubernetes-admin" || r.Header.Get("Authorization") != "" || len(r.TLS.PeerCertificates) == 0 {
		t.Errorf("the server is asked with %v, %d certificates", r.Header, len(r.TLS.PeerCertificates))
	}

	// The ledger counts the calls.
	calls := map[string]int64{}
	for _, e := range a.ledger.Snapshot() {
		if e.Point == extension.MetricsAPI {
			calls[e.Name+" "+e.Where] = e.Calls
		}
	}
	for _, name := range []string{
		"externalmetricsroute/keda ExternalMetricsRoute/keda", "externalmetricsroute/team ExternalMetricsRoute/team",
		externalmetrics.Name + " APIService/" + externalmetrics.Name,
	} {
		if calls[name] == 0 {
			t.Errorf("no calls of %s: %v", name, calls)
		}
	}

	// Discovery lists the resources of all, each once; a server that is not understood has none, and says so.
	resp, body := a.say(a.client, "GET", externalRoot)
	if resp.StatusCode != http.StatusOK || strings.Count(body, `"externalmetrics"`) != 1 || !strings.Contains(body, `"of-keda"`) ||
		!strings.Contains(body, `"of-team"`) || !strings.Contains(body, `"of-plain"`) || resp.Header.Get("Warning") != "" {
		t.Errorf("discovery: %d %s %v", resp.StatusCode, body, resp.Header)
	}
	team.change(func() { team.lists = false })
	resp, body = a.say(a.client, "GET", externalRoot)
	if resp.StatusCode != http.StatusOK || !strings.Contains(body, `"of-keda"`) || strings.Contains(body, `"of-team"`) ||
		!strings.Contains(resp.Header.Get("Warning"), "ExternalMetricsRoute team") {
		t.Errorf("discovery with nonsense: %d %s %v", resp.StatusCode, body, resp.Header)
	}

	// A server that is gone: its metrics go to no other server.
	keda.stop()
	if resp, _ := a.say(a.client, "GET", externalRoot+"/namespaces/shop/s0-kafka-lag"); resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("a server that is gone: %d", resp.StatusCode)
	}
	a.available("keda", "FailedDiscoveryCheck")
	a.inTime(func() bool {
		resp, _ := a.say(a.client, "GET", externalRoot+"/namespaces/shop/s0-kafka-lag")
		return resp.StatusCode == http.StatusServiceUnavailable &&
			strings.Contains(resp.Header.Get("Warning"), "ExternalMetricsRoute keda: FailedDiscoveryCheck")
	})
	a.wants("plain", "shop", "queue")

	// Without its route a metric goes to the APIService.
	if err := a.Backend().Delete(t.Context(), externalRoutes, "", "keda", nil); err != nil {
		t.Fatal(err)
	}
	a.wants("plain", "shop", "s0-kafka-lag")
}

// TestExternalMetricsDiscovered has the group appear in discovery with a route alone.
func TestExternalMetricsDiscovered(t *testing.T) {
	a := startRouted(t)
	a.route(a.behind("keda"), `metrics: ["*"]`)
	for { // it is discovered in the background
		resp, body := a.say(a.client, "GET", "/apis", "Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
		if resp.StatusCode == http.StatusOK && strings.Contains(body, `"of-keda"`) {
			break
		}
		if t.Context().Err() != nil {
			t.Fatal(body)
		}
	}
	if resp, body := a.say(a.client, "GET", "/apis/external.metrics.k8s.io"); resp.StatusCode != http.StatusOK ||
		!strings.Contains(body, "external.metrics.k8s.io/v1beta1") {
		t.Errorf("the group: %d %s", resp.StatusCode, body)
	}
}

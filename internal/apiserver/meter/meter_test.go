// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"context"
	"errors"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/health"
	"github.com/mortise-dev/mortise/resource"
)

// stable lists the stable metrics of kube-apiserver 1.37.1 that exist from the first request on, with their types.
const stable = `# TYPE apiserver_admission_controller_admission_duration_seconds histogram
# TYPE apiserver_admission_step_admission_duration_seconds histogram
# TYPE apiserver_current_inflight_requests gauge
# TYPE apiserver_longrunning_requests gauge
# TYPE apiserver_request_duration_seconds histogram
# TYPE apiserver_request_total counter
# TYPE apiserver_requested_deprecated_apis gauge
# TYPE apiserver_response_sizes histogram
# TYPE apiserver_storage_size_bytes gauge
`

type picky struct{ admit.Plugin }

func (picky) Name() string { return "Picky" }

func (picky) Mutate(context.Context, resource.Backend, *admit.Attributes) error { return nil }

func (picky) Validate(context.Context, resource.Backend, *admit.Attributes) error {
	return errors.New("no")
}

func sample(t *testing.T) *Meter {
	t.Helper()
	pods := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	m := New(time.Unix(1700000000, 0), Sources{
		Version:  version.Info{Major: "1", Minor: "37", GitVersion: "v1.37.1"},
		Inflight: func() (int64, int64) { return 3, 1 },
		Objects:  func(tell func(schema.GroupResource, int64)) { tell(pods.GroupResource(), 7) },
		Storage:  func() int64 { return 4096 },
		Watches: func(tell func(Watched)) {
			tell(Watched{GroupVersionResource: pods, Events: 3, Bytes: 9000, Sizes: []int64{1, 0, 1, 0, 0, 0, 0, 0, 1}, Ended: 2})
		},
		Health: func() []health.Result {
			return []health.Result{{Check: "ping", Root: health.Livez, Passed: 2, OK: true}}
		},
	})
	get := Request{Verb: "GET", Version: "v1", Resource: "pods", Scope: "resource", Component: Component, Code: 200}
	m.Request(get, 30*time.Millisecond, 1500)
	m.Request(get, 2*time.Millisecond, 500)
	m.Request(Request{Verb: "POST", DryRun: "All", Version: "v1", Resource: "pods", Scope: "resource", Component: Component, Code: 201},
		time.Millisecond, 500)
	m.Dropped(Request{Verb: "LIST", Version: "v1", Resource: "pods", Scope: "cluster", Component: Component})
	m.Deprecated("", "v1", "endpoints", "")
	m.Certificate(48 * time.Hour)
	left := m.Long(Request{Verb: "WATCH", Version: "v1", Resource: "pods", Scope: "cluster", Component: Component, Code: 200})
	m.Long(Request{Verb: "WATCH", Version: "v1", Resource: "pods", Scope: "cluster", Component: Component})
	left()
	chain := m.Admission(admit.Chain{picky{}})
	at := &admit.Attributes{Operation: admit.Update}
	if err := chain.Mutate(t.Context(), nil, at); err != nil {
		t.Fatal(err)
	}
	if err := chain.Validate(t.Context(), nil, at); err == nil || err.Error() != "no" {
		t.Fatalf("the chain answers %v", err)
	}
	return m
}

func scrape(t *testing.T, m *Meter, accept string) (contentType, body string) {
	t.Helper()
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept", accept)
	w := httptest.NewRecorder()
	m.Metrics(w, r)
	return w.Header().Get("Content-Type"), w.Body.String()
}

func TestStableMetrics(t *testing.T) {
	m := sample(t)
	_, text := scrape(t, m, "")
	var types []string
	var helps = map[string]string{}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, "# HELP "); ok {
			name, help, _ := strings.Cut(rest, " ")
			helps[name] = help
		}
		if rest, ok := strings.CutPrefix(line, "# TYPE "); ok {
			name, _, _ := strings.Cut(rest, " ")
			if strings.HasPrefix(helps[name], "[STABLE] ") {
				types = append(types, line)
			}
		}
	}
	slices.Sort(types)
	if diff := cmp.Diff(stable, strings.Join(types, "")); diff != "" {
		t.Errorf("stable metrics (-want +got):\n%s", diff)
	}
	for _, line := range []string{
		`apiserver_request_total{code="200",component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 2`,
		`apiserver_request_total{code="201",component="apiserver",dry_run="All",group="",resource="pods",scope="resource",subresource="",verb="POST",version="v1"} 1`,
		`apiserver_request_total{code="429",component="apiserver",dry_run="",group="",resource="pods",scope="cluster",subresource="",verb="LIST",version="v1"} 1`,
		`apiserver_request_terminations_total{code="429",component="apiserver",group="",resource="pods",scope="cluster",subresource="",verb="LIST",version="v1"} 1`,
		`apiserver_request_duration_seconds_bucket{component="apiserver",dry_run="",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1",le="0.005"} 1`,
		`apiserver_request_sli_duration_seconds_count{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 2`,
		`apiserver_response_sizes_bucket{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1",le="1000"} 1`,
		`apiserver_response_sizes_sum{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 2000`,
		`apiserver_longrunning_requests{component="apiserver",group="",resource="pods",scope="cluster",subresource="",verb="WATCH",version="v1"} 1`,
		`apiserver_requested_deprecated_apis{group="",removed_release="",resource="endpoints",subresource="",version="v1"} 1`,
		`apiserver_current_inflight_requests{request_kind="readOnly"} 3`,
		`apiserver_client_certificate_expiration_seconds_bucket{le="86400"} 0`,
		`apiserver_client_certificate_expiration_seconds_bucket{le="172800"} 1`,
		`apiserver_current_inflight_requests{request_kind="mutating"} 1`,
		`apiserver_resource_objects{group="",resource="pods"} 7`,
		`apiserver_storage_size_bytes{storage_cluster_id="mortise-0"} 4096`,
		`apiserver_watch_events_total{group="",resource="pods",version="v1"} 3`,
		`apiserver_watch_events_sizes_bucket{group="",resource="pods",version="v1",le="4096"} 2`,
		`apiserver_watch_events_sizes_bucket{group="",resource="pods",version="v1",le="+Inf"} 3`,
		`apiserver_terminated_watchers_total{group="",resource="pods"} 2`,
		`apiserver_admission_controller_admission_duration_seconds_count{name="Picky",operation="UPDATE",rejected="true",type="validate"} 1`,
		`apiserver_admission_step_admission_duration_seconds_count{operation="UPDATE",rejected="false",type="admit"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("not told: %s", line)
		}
	}
	if strings.Contains(text, `apiserver_response_sizes_count{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="POST"`) ||
		strings.Contains(text, `apiserver_request_sli_duration_seconds_count{component="apiserver",group="",resource="pods",scope="resource",subresource="",verb="POST"`) {
		t.Error("sizes of writes, or latencies of dry runs, are told")
	}
}

func TestFormsAndReset(t *testing.T) {
	m := sample(t)
	for accept, want := range map[string]string{
		"": "text/plain; version=0.0.4; charset=utf-8; escaping=underscores",
		"application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited": "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited; escaping=underscores",
	} {
		if got, _ := scrape(t, m, accept); got != want {
			t.Errorf("%q: %s", accept, got)
		}
	}
	w := httptest.NewRecorder()
	m.SLIs(w, httptest.NewRequest("GET", "/metrics/slis", nil))
	for _, line := range []string{
		`kubernetes_healthcheck{name="ping",type="livez"} 1`, `kubernetes_healthchecks_total{name="ping",status="success",type="livez"} 2`,
	} {
		if !strings.Contains(w.Body.String(), line+"\n") {
			t.Errorf("not told: %s", line)
		}
	}
	w = httptest.NewRecorder()
	m.Metrics(w, httptest.NewRequest("DELETE", "/metrics", nil))
	if w.Body.String() != "metrics reset\n" {
		t.Errorf("reset: %s", w.Body.String())
	}
	if _, text := scrape(t, m, ""); strings.Contains(text, "apiserver_request_total{") ||
		!strings.Contains(text, "apiserver_longrunning_requests{") {
		t.Error("after a reset requests are still told, or what is under way is not")
	}
	m.Request(Request{Verb: "GET", Version: "v1", Resource: "pods", Scope: "resource", Component: Component, Code: 200}, time.Millisecond, 1)
	if _, text := scrape(t, m, ""); !strings.Contains(text,
		`resource="pods",scope="resource",subresource="",verb="GET",version="v1"} 1`+"\n") {
		t.Error("requests after a reset are not counted")
	}
}

// BenchmarkRequest measures what the metrics add to every request.
func BenchmarkRequest(b *testing.B) {
	m := New(time.Now(), Sources{})
	k := Request{Verb: "GET", Version: "v1", Resource: "pods", Scope: "resource", Component: Component, Code: 200}
	b.ReportAllocs()
	for b.Loop() {
		m.Request(k, time.Millisecond, 1500)
	}
}

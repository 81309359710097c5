// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/mortise-dev/mortise/resource"
)

// joined is the access to nodes of other processes.
type joined struct {
	resource.Backend
	server *httptest.Server
}

func (j joined) Get(_ context.Context, _ schema.GroupResource, _, name string) (resource.Object, error) {
	return nodeNamed(name, corev1.ConditionTrue), nil
}

func (j joined) Node(_ context.Context, name string) (*url.URL, http.RoundTripper, error) {
	if name == "unknown" {
		return nil, nil, errors.New("no such node")
	}
	at, err := url.Parse(j.server.URL)
	return at.JoinPath(name), j.server.Client().Transport, err
}

// TestRemoteNode reads /metrics/resource of nodes of other processes, also where the answers are wrong.
func TestRemoteNode(t *testing.T) {
	begun := time.Now().Add(-time.Hour)
	mux := http.NewServeMux()
	mux.HandleFunc("GET /good/metrics/resource", func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasPrefix(r.Header.Get("Accept"), "text/plain") {
			t.Errorf("it accepts %q", r.Header.Get("Accept"))
		}
		now := time.Now()
		used, ms := now.Sub(begun).Seconds()/2, now.UnixMilli()
		_, _ = fmt.Fprintf(w, "node_cpu_usage_seconds_total %f %d\nnode_memory_working_set_bytes 5e+06 %d\n", used, ms, ms)
		const labels = `{container="a",namespace="ns",pod="web"}`
		_, _ = fmt.Fprintf(w, "container_cpu_usage_seconds_total%s %f %d\ncontainer_memory_working_set_bytes%s 1024 %d\n", labels, used, ms, labels, ms)
		_, _ = fmt.Fprintf(w, "container_start_time_seconds%s %d\n", labels, begun.Unix())
	})
	mux.Handle("GET /elsewhere/metrics/resource", http.RedirectHandler("/good/metrics/resource", http.StatusFound))
	mux.HandleFunc("GET /lies/metrics/resource", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = fmt.Fprintln(w, "node_cpu_usage_seconds_total NaN")
	})
	b := joined{server: httptest.NewTLSServer(mux)}
	defer b.server.Close()

	for name, want := range map[string]string{
		"elsewhere": "ask node elsewhere: /metrics/resource: 302 Found", "absent": "404 Not Found", "unknown": "no such node",
		"lies": "node_cpu_usage_seconds_total: NaN",
	} {
		if m, err := remote(t.Context(), b, name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, %v", name, m, err)
		}
	}

	s := New(Options{})
	defer s.Close()
	node := nodeNamed("good", corev1.ConditionTrue).(*corev1.Node)
	s.measure(t.Context(), b, []*corev1.Node{node})
	last, prev := s.samples("good")
	u, ok := nodeUsage(last, prev)
	if l := u.list(); !ok || l.Cpu().MilliValue() < 490 || l.Cpu().MilliValue() > 510 || l.Memory().Value() != 5e6 {
		t.Errorf("the node uses %v, %v", l, ok)
	}
	of, ok := podUsage(last, prev, key)
	if !ok || len(of.containers) != 1 || of.containers[0].memory != 1024 || of.containers[0].cpu < 490e6 || of.containers[0].cpu > 510e6 {
		t.Errorf("the pod uses %+v, %v", of, ok)
	}
	pods, err := s.podMetrics(t.Context(), b, []resource.Object{
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.PodSpec{NodeName: "good"}},
	})
	if err != nil || len(pods) != 1 || pods[0].(*metricsv1beta1.PodMetrics).Containers[0].Name != "a" {
		t.Errorf("the answer is %v, %v", pods, err)
	}
}

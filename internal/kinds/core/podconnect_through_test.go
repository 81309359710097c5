// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	proxymetrics "k8s.io/apiserver/pkg/util/proxy/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// TestWebSocketsToAgents: an agent that declares that it takes WebSockets gets them as they are, another gets SPDY; both are counted.
func TestWebSocketsToAgents(t *testing.T) {
	b, host := serveConnect(t)
	proxymetrics.ResetForTest()
	t.Cleanup(proxymetrics.ResetForTest)
	asked := make(chan string, 1)
	b.agent = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Header.Get("Upgrade") + " " + r.Header.Get("Sec-Websocket-Protocol")
		http.Error(w, "not today", http.StatusBadRequest)
	}))
	t.Cleanup(b.agent.Close)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	b.objects["nodes/n1"] = node
	for _, features := range [][]string{nil, {"Other", "ExtendWebSocketsToKubelet"}} {
		node.Status.DeclaredFeatures = features
		for path, protocol := range map[string]string{
			"/pods/one/exec?command=a&stdout=true": "v5.channel.k8s.io", "/pods/one/attach?stdout=true": "v5.channel.k8s.io",
			"/pods/one/portforward?ports=80": "SPDY/3.1+portforward.k8s.io",
		} {
			want := "websocket " + protocol
			if features == nil {
				want = "SPDY/3.1 "
			}
			ws, err := readLog(t, host+path, protocol)
			select {
			case got := <-asked:
				if got != want {
					t.Errorf("%s, features %v: the agent is asked for %q, want %q", path, features, got, want)
				}
			case <-time.After(time.Minute):
				t.Fatalf("%s, features %v: the agent is not asked", path, features)
			}
			if err == nil {
				ws.Close() // not before: the translator of commands upgrades before it asks, and a client that has left asks for nothing
			}
		}
	}
	all, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var counted []string
	for _, f := range all {
		if f.GetName() != "apiserver_websocket_streaming_requests_total" {
			continue
		}
		for _, m := range f.Metric {
			counted = append(counted, fmt.Sprintf("%s %s %v", m.Label[1].GetValue(), m.Label[0].GetValue(), m.Counter.GetValue()))
		}
	}
	slices.Sort(counted)
	want := []string{
		"attach proxied_to_kubelet 1", "attach translated_at_apiserver 1", "exec proxied_to_kubelet 1", "exec translated_at_apiserver 1",
		"portforward proxied_to_kubelet 1", "portforward translated_at_apiserver 1",
	}
	if diff := cmp.Diff(want, counted); diff != "" {
		t.Errorf("counted (-want +got):\n%s", diff)
	}
}

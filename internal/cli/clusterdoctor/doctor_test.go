// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package clusterdoctor

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/yaml"
)

// now is the time of the examinations.
var now = time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)

// empty are the answers of a cluster with one node and nothing else.
func empty() map[string]string {
	return map[string]string{
		"/readyz": "ok",
		"/apis/apiregistration.k8s.io/v1/apiservices":                           "items: []",
		"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations":   "items: []",
		"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": "items: []",
		"/api/v1/nodes": "items: [{metadata: {name: a}, status: {conditions: [{type: Ready, status: 'True'}]}}]",
		"/api/v1/namespaces/kube-system/services/kube-dns": "metadata: {name: kube-dns}",
		"/api/v1/pods":                           "items: []",
		"/api/v1/persistentvolumeclaims":         "items: []",
		"/apis/storage.k8s.io/v1/storageclasses": "items: [{metadata: {name: late}, volumeBindingMode: WaitForFirstConsumer}, {metadata: {name: soon}}]",
		"/api/v1/namespaces":                     "items: [{metadata: {name: default}}]",
	}
}

// findings examines a cluster with the answers: a status code before the text, if it is not 200.
func findings(t *testing.T, answers map[string]string) []string {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, ok := answers[r.URL.Path]
		if !ok {
			text = "404 kind: Status\nreason: NotFound\ncode: 404"
		}
		code := http.StatusOK
		if n, err := fmt.Sscanf(text, "%d ", &code); n == 1 && err == nil {
			_, text, _ = strings.Cut(text, " ")
		}
		if r.URL.Path != "/readyz" {
			b, err := yaml.YAMLToJSON([]byte(text))
			if err != nil {
				t.Errorf("%s: %v", r.URL.Path, err)
			}
			text = string(b)
			w.Header().Set("Content-Type", "application/json")
		}
		w.WriteHeader(code)
		_, _ = w.Write([]byte(text))
	}))
	defer server.Close()
	found, err := examine(t.Context(), &rest.Config{Host: server.URL, QPS: -1}, clocktesting.NewFakePassiveClock(now))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, f := range found {
		if f.State != OK {
			out = append(out, strings.ReplaceAll(string(f.State)+" "+f.Check+": "+f.What, server.URL, "SERVER"))
		}
		if f.State == Wrong && f.Do == "" {
			t.Errorf("%s: %s: nothing says what to do", f.Check, f.What)
		}
	}
	if len(found) < len(checks()) && answers["/readyz"] == "ok" {
		t.Errorf("%d findings of %d checks", len(found), len(checks()))
	}
	return out
}

func TestFindings(t *testing.T) {
	for name, c := range map[string]struct {
		answers map[string]string
		want    []string
	}{
		"all is well": {},
		"not ready": {
			map[string]string{"/readyz": "500 [+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n"},
			[]string{"wrong API server: not ready: etcd"},
		},
		"refused": {
			map[string]string{"/readyz": "401 Unauthorized"},
			[]string{"wrong API server: reach the API server at SERVER: the server has asked for the client to provide credentials"},
		},
		"aggregated": {
			map[string]string{"/apis/apiregistration.k8s.io/v1/apiservices": `items:
- {metadata: {name: v1.a}, status: {conditions: [{type: Available, status: "False", message: no endpoints}]}}
- {metadata: {name: v1.b}, status: {conditions: [{type: Available, status: "True"}]}}`},
			[]string{"wrong aggregated APIs: v1.a is not available: no endpoints"},
		},
		"webhooks": {
			map[string]string{
				"/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations": `items:
- metadata: {name: m}
  webhooks:
  - {name: gone.a, failurePolicy: Fail, clientConfig: {service: {namespace: x, name: gone}}}
  - {name: dns.a, failurePolicy: Fail, clientConfig: {service: {namespace: kube-system, name: kube-dns}}}
  - {name: url.a, failurePolicy: Fail, clientConfig: {url: "https://127.0.0.1"}}`,
				"/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations": `items:
- metadata: {name: v}
  webhooks: [{name: gone.b, failurePolicy: Ignore, clientConfig: {service: {namespace: x, name: gone}}}]`,
			},
			[]string{
				"wrong webhooks: webhook gone.a: its Service x/gone does not exist, so that writes that it matches are refused",
				"note webhooks: webhook gone.b: its Service x/gone does not exist",
			},
		},
		"no nodes": {
			map[string]string{"/api/v1/nodes": "items: []"},
			[]string{"wrong nodes: there is no node, so that no pod runs"},
		},
		"nodes": {
			map[string]string{"/api/v1/nodes": `items:
- {metadata: {name: a}, status: {conditions: [{type: Ready, status: Unknown, message: silent}]}}
- {metadata: {name: b}, status: {conditions: [{type: DiskPressure, status: "True", message: full}, {type: Ready, status: "True"}]}}
- {metadata: {name: c}, spec: {unschedulable: true}, status: {conditions: [{type: Ready, status: "True"}]}}
- {metadata: {name: d}}
- {metadata: {name: e}}
- {metadata: {name: f}}
- {metadata: {name: g}}`},
			[]string{
				"wrong nodes: a is not ready: silent", "wrong nodes: b has little space on its disk: full", "note nodes: c is cordoned",
				"wrong nodes: d is not ready: the node has not reported yet", "wrong nodes: e is not ready: the node has not reported yet",
				"wrong nodes: and 2 more",
			},
		},
		"no DNS": {
			map[string]string{"/api/v1/namespaces/kube-system/services/kube-dns": "404 {kind: Status, reason: NotFound, code: 404}"},
			[]string{"wrong cluster DNS: there is no Service kube-system/kube-dns: pods do not resolve names of Services"},
		},
		"not allowed": {
			map[string]string{"/api/v1/pods": "403 {apiVersion: v1, kind: Status, status: Failure, reason: Forbidden, code: 403, message: not yours}"},
			[]string{"note clouds: not examined: not yours", "note pods: not examined: not yours"},
		},
		"pods": {
			map[string]string{"/api/v1/pods": `items:
- {metadata: {namespace: x, name: young, creationTimestamp: "2026-11-28T11:59:00Z"}, status: {phase: Pending}}
- {metadata: {namespace: x, name: old, creationTimestamp: "2026-11-28T11:00:00Z"}, status: {phase: Pending}}
- {metadata: {namespace: x, name: done, creationTimestamp: "2026-11-28T11:00:00Z"}, status: {phase: Succeeded}}
- {metadata: {namespace: x, name: full, creationTimestamp: "2026-11-28T11:00:00Z"}, status: {phase: Pending, conditions: [
   {type: PodScheduled, status: "False", message: 0/1 nodes}]}}
- {metadata: {namespace: x, name: loop, creationTimestamp: "2026-11-28T11:00:00Z"}, status: {phase: Running, containerStatuses: [
   {name: c, state: {waiting: {reason: CrashLoopBackOff, message: back-off}}}]}}
- {metadata: {namespace: x, name: stuck, creationTimestamp: "2026-11-28T11:00:00Z", deletionTimestamp: "2026-11-28T11:00:00Z"}}`},
			[]string{
				"note pods: x/old: it waits for longer than two minutes", "note pods: x/full: it has no node: 0/1 nodes",
				"note pods: x/loop: container c: CrashLoopBackOff: back-off", "note pods: x/stuck: it is deleted, but does not end",
			},
		},
		"claims": {
			map[string]string{"/api/v1/persistentvolumeclaims": `items:
- {metadata: {namespace: x, name: none}, status: {phase: Pending}}
- {metadata: {namespace: x, name: late}, spec: {storageClassName: late}, status: {phase: Pending}}
- {metadata: {namespace: x, name: soon}, spec: {storageClassName: soon}, status: {phase: Pending}}
- {metadata: {namespace: x, name: gone}, spec: {storageClassName: gone}, status: {phase: Pending}}
- {metadata: {namespace: x, name: bound}, status: {phase: Bound}}`},
			[]string{
				"wrong claims: x/none names no StorageClass, and there is no default one", "wrong claims: x/soon is not bound (phase Pending)",
				"wrong claims: x/gone waits for StorageClass gone, which does not exist",
			},
		},
		"namespaces": {
			map[string]string{"/api/v1/namespaces": `items:
- metadata: {name: x, deletionTimestamp: "2026-11-28T11:00:00Z"}
  status: {conditions: [{type: NamespaceContentRemaining, status: "True", message: pods are left}, {type: Other, status: "False", message: unused}]}`},
			[]string{"wrong namespaces: x is deleted, but does not end: pods are left"},
		},
	} {
		answers := empty()
		for path, text := range c.answers {
			answers[path] = text
		}
		if diff := cmp.Diff(c.want, findings(t, answers)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
	}
}

// TestNoServer: a server that is not there is one finding that says how to start one.
func TestNoServer(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	found, err := Examine(t.Context(), &rest.Config{Host: server.URL})
	if err != nil || len(found) != 1 || found[0].State != Wrong || !strings.Contains(found[0].Do, "mortise up") {
		t.Errorf("got %+v, %v", found, err)
	}
}

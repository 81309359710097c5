// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/golden"
)

// TestExplainPrints prints the answers of testdata/explain: NAME.json is what a server says, NAME.txt what is printed of it, in each
// form that fits.
func TestExplainPrints(t *testing.T) {
	files, err := filepath.Glob("testdata/explain/*.json")
	if err != nil || len(files) == 0 {
		t.Fatalf("no answers: %v", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if strings.HasPrefix(filepath.Base(file), "autoscaling") {
			var s trace.Autoscaling
			if err := json.Unmarshal(b, &s); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			err = printAutoscaling(&out, &s)
		} else if strings.HasPrefix(filepath.Base(file), "scheduling") {
			var s trace.Scheduling
			if err := json.Unmarshal(b, &s); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			err = printScheduling(&out, &s)
		} else if strings.HasPrefix(filepath.Base(file), "field") {
			var f trace.Field
			if err := json.Unmarshal(b, &f); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			err = printField(&out, &f)
		} else {
			var v trace.View
			if err := json.Unmarshal(b, &v); err != nil {
				t.Fatalf("%s: %v", file, err)
			}
			for _, print := range []func() error{
				func() error { return printWrites(&out, &v) },
				func() error { _, err := fmt.Fprintln(&out, "----------"); return err },
				func() error { return printRejected(&out, &v) },
				func() error { _, err := fmt.Fprintln(&out, "----------"); return err },
				func() error { return printTraces(&out, v.Traces) },
			} {
				if err == nil {
					err = print()
				}
			}
		}
		if err != nil {
			t.Fatal(err)
		}
		golden.Compare(t, strings.TrimSuffix(file, ".json")+".txt", out.String())
	}
}

// TestExplainAsks looks at what the command asks a server, and how it says what that refuses.
func TestExplainAsks(t *testing.T) {
	var asked []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch r.URL.Path {
		case "/api":
			fmt.Fprint(w, `{"kind": "APIVersions", "versions": ["v1"]}`)
		case "/apis":
			fmt.Fprint(w, `{"kind": "APIGroupList", "apiVersion": "v1", "groups": [{"name": "autoscaling",
				"versions": [{"groupVersion": "autoscaling/v2", "version": "v2"}], "preferredVersion": {"groupVersion": "autoscaling/v2",
				"version": "v2"}}]}`)
		case "/apis/autoscaling/v2":
			fmt.Fprint(w, `{"kind": "APIResourceList", "groupVersion": "autoscaling/v2", "resources": [{"name": "horizontalpodautoscalers",
				"singularName": "horizontalpodautoscaler", "shortNames": ["hpa"], "namespaced": true, "kind": "HorizontalPodAutoscaler",
				"verbs": ["get"]}]}`)
		case "/api/v1":
			fmt.Fprint(w, `{"kind": "APIResourceList", "groupVersion": "v1", "resources": [
				{"name": "pods", "singularName": "pod", "shortNames": ["po"], "namespaced": true, "kind": "Pod", "verbs": ["get"]},
				{"name": "nodes", "singularName": "node", "namespaced": false, "kind": "Node", "verbs": ["get"]}]}`)
		case "/api/v1/namespaces/mine/pods/run":
			fmt.Fprint(w, `{"kind": "Pod", "apiVersion": "v1", "spec": {"nodeName": "far"}}`)
		case "/api/v1/nodes/far/proxy/debug/extensions":
			asked = append(asked, r.URL.Path+"?"+queried(r))
			fmt.Fprint(w, `{"extensions": [{"point": "device-plugin", "name": "example.com/dev"}],
				"calls": [{"time": "2026-11-27T10:00:00Z", "point": "device-plugin", "extension": "example.com/dev", "method": "Allocate"}]}`)
		case "/debug/explain/gone":
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "no such trace", "reason": "NotFound", "code": 404}`)
		default:
			asked = append(asked, r.URL.Path+"?"+queried(r))
			fmt.Fprint(w, `{}`)
		}
	}))
	defer s.Close()
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte(`{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "c", "cluster": {"server": "`+
		s.URL+`"}}],
		"contexts": [{"name": "x", "context": {"cluster": "c", "namespace": "mine"}}], "current-context": "x"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]struct {
		asks string
		code int
		says string
	}{
		"some-id":         {"/debug/explain/some-id?limit=50", 0, ""},
		"some-id -o json": {"/debug/explain/some-id?limit=50", 0, `"traces": null`},
		"a/b/c":           {"", 2, "want TYPE/NAME"},
		"po/web": {"/debug/explain?group=&limit=50&name=web&namespace=mine&resource=pods /api/v1/namespaces/mine/pods/web?", 0,
			"No writes"},
		"po/run -o json": {"/debug/explain?group=&limit=50&name=run&namespace=mine&resource=pods " +
			"/api/v1/nodes/far/proxy/debug/extensions?name=run&namespace=mine", 0, `"method": "Allocate"`},
		"Pod/web spec.a -n other": {"/debug/explain?field=spec.a&group=&limit=50&name=web&namespace=other&resource=pods", 0,
			"Value:    (absent)"},
		"nodes.v1./a":                {"/debug/explain?group=&limit=50&name=a&resource=nodes", 0, ""},
		"thing/a":                    {"", 1, "find resource: "},
		"pod/web spec..a":            {"", 2, "read path"},
		"--rejected --last 10m -n a": {"/debug/explain?limit=50&namespace=a&rejected=true&since=10m0s", 0, "No refused writes"},
		"--brief --limit 3":          {"/debug/explain?brief=true&limit=3", 0, ""},
		"pod/web --scheduling": {"/debug/explain?group=&name=web&namespace=mine&resource=pods&scheduling=true", 0,
			"Decisions:  none recorded"},
		"po/web --scheduling -o json -n x": {"/debug/explain?group=&name=web&namespace=x&resource=pods&scheduling=true", 0, `"decisions": null`},
		"hpa/web": {"/debug/explain?autoscaling=true&group=autoscaling&name=web&namespace=mine&resource=horizontalpodautoscalers", 0,
			"Autoscaler: "},
		"hpa/web -o json": {"/debug/explain?autoscaling=true&group=autoscaling&name=web&namespace=mine&resource=horizontalpodautoscalers", 0,
			`"decisions": null`},
		"hpa/web --last 1m": {"/debug/explain?group=autoscaling&limit=50&name=web&namespace=mine&resource=horizontalpodautoscalers&since=1m0s",
			0, "No writes"},
		"--scheduling":              {"", 2, "--scheduling is about a pod"},
		"pod/web spec --scheduling": {"", 2, "--scheduling is about a pod"},
		"gone":                      {"", 1, "mortise: get traces: no such trace"},
		"--limit 0":                 {"", 2, "--limit 0"},
		"--last -1s":                {"", 2, "--last"},
		"-o yaml":                   {"", 2, "want json"},
		"a b":                       {"", 2, "want an audit ID"},
		"pod/web spec --rejected":   {"", 2, "--rejected"},
		"--nosuch":                  {"", 2, "unknown flag"},
		"--help":                    {"", 0, "Usage: mortise explain"},
	} {
		asked = nil
		var out bytes.Buffer
		code := Main(t.Context(), append([]string{"explain", "--kubeconfig", kubeconfig}, strings.Fields(args)...), Program{Out: &out, Err: &out})
		if code != want.code || !strings.Contains(out.String(), want.says) {
			t.Errorf("explain %s: exit code %d, want %d: %s", args, code, want.code, out.String())
		}
		if got := strings.Join(asked, " "); got != want.asks {
			t.Errorf("explain %s asks\n%s, want\n%s", args, got, want.asks)
		}
	}
}

// queried returns a request's query without how long the command waits.
func queried(r *http.Request) string {
	q := r.URL.Query()
	q.Del("timeout")
	return q.Encode()
}

// Calls to plug-ins of the node for a pod follow its writes.
func TestCallsToPlugins(t *testing.T) {
	var out strings.Builder
	v := &trace.View{Calls: []trace.Call{
		{Time: "2026-11-27T10:00:00.5Z", Point: "device-plugin", Extension: "example.com/dev", Method: "Allocate", Seconds: 0.002},
		{Time: "2026-11-27T10:00:01Z", Point: "dra", Extension: "d.test", Seconds: 45, Error: "too late"},
	}}
	if err := printWrites(&out, v); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"device-plugin  example.com/dev  Allocate  2", "dra            d.test           -         45"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

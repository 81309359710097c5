// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/extension"
)

// TestExtensionsAreListed looks at the ledger through the API: a webhook is in it from when it is configured until it is not, and
// those who may not get the path see nothing.
func TestExtensionsAreListed(t *testing.T) {
	s := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}})
	client, err := rest.HTTPClientFor(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	listed := func() []extension.Row {
		t.Helper()
		resp, err := client.Get(s.URL() + "/debug/extensions")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		var v extension.View
		if err := json.NewDecoder(resp.Body).Decode(&v); err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("answered %d, %v", resp.StatusCode, err)
		}
		if len(v.Points) != len(extension.Points()) {
			t.Errorf("the catalogue has %d points", len(v.Points))
		}
		return v.Extensions
	}
	if got := listed(); len(got) != 0 {
		t.Errorf("a bare server has extensions: %+v", got)
	}
	const path, name = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "boxes.ext.example.com"
	crd := `{"metadata": {"name": "` + name +
		`"}, "spec": {"group": "ext.example.com", "scope": "Namespaced", "names": {"plural": "boxes", "kind": "Box"},
		"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"url": "https://127.0.0.1:1/convert"}, "conversionReviewVersions": ["v1"]}},
		"versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": {"type": "object"}}},
			{"name": "v2", "served": true, "storage": false, "schema": {"openAPIV3Schema": {"type": "object"}}}]}}`
	if code := post(client, s.URL()+path, []byte(crd)); code != http.StatusCreated {
		t.Fatalf("create: %d", code)
	}
	want := extension.Row{Point: extension.ConversionWebhook, Name: name, Configured: "CustomResourceDefinition/" + name,
		State: extension.Unused, Affects: []extension.Affected{{What: "boxes.ext.example.com/v2", Effect: extension.Unavailable}}}
	if diff := cmp.Diff([]extension.Row{want}, listed()); diff != "" {
		t.Errorf("listed (-want +got):\n%s", diff)
	}
	if code := post(client, s.URL()+"/apis/ext.example.com/v2/namespaces/default/boxes",
		[]byte(`{"apiVersion":"ext.example.com/v2","kind":"Box","metadata":{"name":"a"}}`)); code < 400 {
		t.Errorf("an object went through a webhook that is not there: %d", code)
	}
	if got := listed(); len(got) != 1 || got[0].State != extension.Failing || got[0].Calls == 0 || got[0].LastError == "" ||
		got[0].LastFailure == "" {
		t.Errorf("after a call: %+v", got)
	}
	metrics, err := s.Client().Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil || !strings.Contains(string(metrics),
		`mortise_extension_calls_total{name="`+name+`",point="conversion-webhook",result="error"} `) {
		t.Errorf("the metrics do not count it: %v", err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPatch, s.URL()+path+"/"+name,
		strings.NewReader(`{"spec":{"conversion":{"strategy":"None","webhook":null}}}`))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/merge-patch+json")
	changed, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	changed.Body.Close()
	if got := listed(); len(got) != 0 || changed.StatusCode != http.StatusOK {
		t.Errorf("answered %d; it converts by itself now, and yet %+v is listed", changed.StatusCode, got)
	}
	as := rest.CopyConfig(s.Config())
	as.Impersonate.UserName = "jane"
	janes, err := rest.HTTPClientFor(as)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := janes.Get(s.URL() + "/debug/extensions")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusForbidden {
		t.Errorf("jane is answered %d", resp.StatusCode)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// TestConnectAsCreate opens a command's stream by GET, as WebSockets do, and by POST: both need the verb create. A
// proxy request needs only the verb of its method, and may have any method.
func TestConnectAsCreate(t *testing.T) {
	m, err := serving.LoadOrCreate("", []string{"127.0.0.1"}, serving.Options{})
	if err != nil {
		t.Fatal(err)
	}
	says := func(context.Context, resource.Backend, string, string, runtime.Object, string) (http.Handler, error) {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "connected") }), nil
	}
	options := func(url.Values) (runtime.Object, error) { return &corev1.PodExecOptions{}, nil }
	d := pods()
	d.Subresources = []resource.Subresource{
		{Name: "exec", Verbs: []string{"create", "get"}, Connect: &resource.Connect{Options: options, Handler: says, AsCreate: true}},
		{Name: "proxy", Verbs: []string{"create", "delete", "get", "patch", "update"},
			Connect: &resource.Connect{Options: options, Handler: says, TakesPath: true}},
	}
	engine := store.New(memory.Open(memory.Options{}))
	t.Cleanup(func() { engine.Close() })
	var asked []string
	may := map[string][]string{"reader": {"get"}, "runner": {"get", "create"}}
	s, err := New(Options{Store: engine, Kinds: []*resource.Descriptor{d}, Material: m, Explain: Explain{On: true},
		Authorizers: []authorize.Authorizer{
			authorize.Func(func(_ context.Context, a *authorize.Attributes) (authorize.Decision, string, error) {
				asked = append(asked, fmt.Sprintf("%s %s/%s %s/%s", a.Verb, a.Resource, a.Subresource, a.Namespace, a.Name))
				if slices.Contains(may[a.User.GetName()], a.Verb) {
					return authorize.Allow, "", nil
				}
				return authorize.NoOpinion, "", nil // as with RBAC
			}),
		}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		who, method, sub string
		code             int
		asked            []string
	}{
		{"reader", "GET", "exec", 403, []string{"get pods/exec ns/p", "create pods/exec ns/p"}},
		{"runner", "GET", "exec", 200, []string{"get pods/exec ns/p", "create pods/exec ns/p"}},
		{"runner", "POST", "exec", 200, []string{"create pods/exec ns/p"}},
		{"runner", "HEAD", "exec", 405, []string{"get pods/exec ns/p"}},
		{"reader", "GET", "proxy", 200, []string{"get pods/proxy ns/p"}},
		{"reader", "HEAD", "proxy", 200, []string{"get pods/proxy ns/p"}},
	} {
		t.Run(c.who+" "+c.method+" "+c.sub, func(t *testing.T) {
			asked = nil
			transport, err := rest.TransportFor(s.Config(&user.DefaultInfo{Name: c.who}))
			if err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequestWithContext(t.Context(), c.method, "http://api/api/v1/namespaces/ns/pods/p/"+c.sub, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := transport.RoundTrip(req)
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(resp.Body)
			resp.Body.Close()
			if err != nil {
				t.Fatal(err)
			}
			if resp.StatusCode != c.code {
				t.Errorf("code %d, want %d", resp.StatusCode, c.code)
			}
			if c.code == http.StatusForbidden {
				var st metav1.Status
				if err := json.Unmarshal(body, &st); err != nil {
					t.Fatal(err)
				}
				want := `pods "p" is forbidden: User "reader" cannot create resource "pods/exec" in API group "" in the namespace "ns"`
				if st.Reason != metav1.StatusReasonForbidden || st.Message != want || st.Details == nil || st.Details.Kind != "pods" ||
					st.Details.Name != "p" {
					t.Errorf("refused with %s %q %+v, want %q", st.Reason, st.Message, st.Details, want)
				}
			}
			if diff := cmp.Diff(c.asked, asked); diff != "" {
				t.Errorf("asked of the authorizer (-want +got):\n%s", diff)
			}
		})
	}
	w := httptest.NewRecorder()
	s.explain.Handler(s.api.Explained(), status.Write).ServeHTTP(w, httptest.NewRequest(http.MethodGet, trace.Route+"?brief=true", nil))
	var view trace.View
	if err := json.Unmarshal(w.Body.Bytes(), &view); err != nil {
		t.Fatal(err)
	}
	var traces []string
	for _, one := range slices.Backward(view.Traces) {
		traces = append(traces, fmt.Sprintf("%s %s %s/%s %d brief=%t", one.User, one.Method, one.Resource, one.Subresource, one.Code, one.Brief))
	}
	slices.Sort(traces) // they arrived within the same second
	want := []string{
		"reader GET pods/exec 403 brief=false", "reader GET pods/proxy 200 brief=true", "reader HEAD pods/proxy 200 brief=true",
		"runner GET pods/exec 200 brief=false", "runner HEAD pods/exec 405 brief=false", "runner POST pods/exec 200 brief=false",
	}
	if diff := cmp.Diff(want, traces); diff != "" {
		t.Errorf("traces (-want +got):\n%s", diff)
	}
}

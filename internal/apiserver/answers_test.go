// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/internal/apiserver/registry"
)

// Responses of kube-apiserver 1.37.1 that follow a rule for all kinds, each with one kind as an example.
func TestAnswersOfRules(t *testing.T) {
	k := newKept(t)
	var ps []registry.BootstrapObject
	for _, o := range startObjects() {
		ps = append(ps, registry.BootstrapObject{Resource: o.Resource, Object: o.Object, Finish: o.Finish, Fields: o.Fields})
	}
	if _, err := k.CreateMissing(t.Context(), ps); err != nil {
		t.Fatal(err)
	}
	makeObject(t, k, schema.GroupResource{Resource: "configmaps"},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "a"}})
	config := k.Config(&user.DefaultInfo{Name: "admin", Groups: []string{user.SystemPrivilegedGroup}})
	do := func(method, path, accept, body string) (int, string) {
		t.Helper()
		r := httptest.NewRequestWithContext(t.Context(), method, config.Host+path, strings.NewReader(body))
		r.RequestURI = ""
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Accept", accept)
		res, err := (&http.Client{Transport: config.Transport}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	const table = "application/json;as=Table;v=v1;g=meta.k8s.io"
	for _, c := range []struct {
		name, method, path, accept, body string
		code                             int
		has                              string
		times                            int // how often
	}{
		{"a fault that is declared is said once", "PUT", "/api/v1/namespaces/default/configmaps/a", "application/json",
			`{"metadata":{"name":"a","labels":{"a b":"c"}}}`, 422, `"field":"metadata.labels"`, 1},
		{"a kind without declared rules repeats it", "PUT", "/apis/apiregistration.k8s.io/v1/apiservices/v1.apps", "application/json",
			`{"metadata":{"name":"v1.apps","resourceVersion":"RV","labels":{"a b":"c"}},"spec":{"group":"apps","version":"v1","groupPriorityMinimum":5,"versionPriority":6}}`, 422, `"field":"metadata.labels"`, 4},
		{"a dry run answers with what would be read", "POST", "/apis/rbac.authorization.k8s.io/v1/clusterroles?dryRun=All", "application/json",
			`{"metadata":{"name":"x"},"rules":[]}`, 201, `"rules":null`, 1},
		{"administrators' access is asked of the namespace", "POST", "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims",
			"application/json",
			`{"metadata":{"name":"x"},"spec":{"devices":{"requests":[{"name":"r","exactly":{"deviceClassName":"d","adminAccess":true}}]}}}`, 422,
			`"field":"spec.devices.requests[0].adminAccess"`, 1},
		{"system priority classes stay", "DELETE", "/apis/scheduling.k8s.io/v1/priorityclasses/system-node-critical", "application/json",
			``, 403, `this is a system priority class and cannot be deleted`, 1},
		{"flow schemas come in their order", "GET", "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas", table,
			``, 200, `"rows":[{"cells":["exempt","exempt",1`, 1},
		{"capacities have the default columns", "GET", "/apis/storage.k8s.io/v1/csistoragecapacities", table,
			``, 200, `"name":"Created At"`, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			if strings.Contains(c.body, "RV") {
				obj, err := k.Backend().Get(t.Context(), schema.GroupResource{Group: "apiregistration.k8s.io", Resource: "apiservices"}, "", "v1.apps")
				if err != nil {
					t.Fatal(err)
				}
				c.body = strings.Replace(c.body, "RV", obj.GetResourceVersion(), 1)
			}
			code, body := do(c.method, c.path, c.accept, c.body)
			if code != c.code || strings.Count(body, c.has) != c.times {
				t.Errorf("%d %s", code, body)
			}
		})
	}
}

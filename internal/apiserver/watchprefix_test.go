// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/http"
	"net/url"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mortise-dev/mortise/resource"
)

// TestWatchDoesNotGet checks that a user who may only watch a subresource cannot read it with the prefix /watch/….
// There is no such path.
func TestWatchDoesNotGet(t *testing.T) {
	connected := 0
	connect := &resource.Connect{
		TakesPath: true,
		Options:   func(url.Values) (runtime.Object, error) { return nil, nil },
		Handler: func(context.Context, resource.Backend, string, string, runtime.Object, string) (http.Handler, error) {
			connected++
			return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }), nil
		},
	}
	all := []string{"create", "delete", "get", "patch", "update"}
	machines, sets := nodes(), controllers()
	machines.Subresources = append(machines.Subresources, resource.Subresource{Name: "proxy", Verbs: all, Connect: connect})
	sets.Subresources = append(sets.Subresources, resource.Subresource{Name: "log", Verbs: []string{"get"}, Connect: connect})
	d := converse(t, sets, machines)
	const of = "/namespaces/ns/replicationcontrollers"
	d.run(t, []exchange{
		{"POST", "/api/v1" + of, `{"metadata":{"name":"rc"}}`, 201, ""},
		{"POST", "/api/v1/nodes", `{"metadata":{"name":"n1"}}`, 201, ""},
		{"GET", "/api/v1" + of + "/rc/scale", "", 200, "Scale"},
	})
	for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
		for _, path := range []string{
			of + "/rc/status", of + "/rc/scale", of + "/rc/log", of + "/rc/binding", of + "/rc/log?watch=1", of + "//log", "/nodes/n1/proxy",
			"/nodes/n1/proxy/api/v1/secrets", "/nodes/n1/nothing",
		} {
			if w := d.say(method, "/api/v1/watch"+path, ""); w.Code != http.StatusNotFound {
				t.Errorf("%s /api/v1/watch%s: %d %s", method, path, w.Code, w.Body)
			}
		}
	}
	if connected > 0 {
		t.Errorf("%d requests reached what is behind the subresources", connected)
	}
	d.run(t, []exchange{{"POST", "/api/v1/watch" + of + "/rc", "{}", 405, ""}, {"GET", "/api/v1/nodes/n1/proxy/x", "", 200, ""}})
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package garbagecollector

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
)

// TestOneGroup is what is found of a group that changed: each resource once, in the preferred version if that has it.
func TestOneGroup(t *testing.T) {
	version := func(v string) metav1.GroupVersionForDiscovery {
		return metav1.GroupVersionForDiscovery{GroupVersion: "g.example.com/" + v, Version: v}
	}
	list := func(v string, names ...string) metav1.APIResourceList {
		l := metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "g.example.com/" + v}
		for _, n := range names {
			l.APIResources = append(l.APIResources, metav1.APIResource{Name: n})
		}
		return l
	}
	answers := map[string]any{
		"/apis/g.example.com": metav1.APIGroup{
			TypeMeta: metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}, Name: "g.example.com",
			Versions: []metav1.GroupVersionForDiscovery{version("v2"), version("v1"), version("v1beta1")}, PreferredVersion: version("v1"),
		},
		"/apis/g.example.com/v2": list("v2", "a", "b"),
		"/apis/g.example.com/v1": list("v1", "a", "a/status"),
		// v1beta1 went meanwhile
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.URL.Path]
		if !ok {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for group, want := range map[string][]string{
		"g.example.com":    {"g.example.com/v1 a", "g.example.com/v1 a/status", "g.example.com/v2 b"},
		"gone.example.com": nil,
	} {
		lists, err := preferred(t.Context(), client, group)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, l := range lists {
			for _, r := range l.APIResources {
				got = append(got, l.GroupVersion+" "+r.Name)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", group, diff)
		}
	}
}

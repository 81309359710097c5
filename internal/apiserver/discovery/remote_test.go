// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/resource"
)

func remoteVersion(group, version string, groupPriority, versionPriority int, f apidiscoveryv2.DiscoveryFreshness) RemoteVersion {
	return RemoteVersion{group, version, groupPriority, versionPriority, apidiscoveryv2.APIVersionDiscovery{
		Version: version, Freshness: f, Resources: []apidiscoveryv2.APIResourceDiscovery{{Resource: "things", Scope: apidiscoveryv2.ScopeCluster,
			ResponseKind: &metav1.GroupVersionKind{Kind: "Thing"}}},
	}}
}

// TestRemoteVersionsAreMerged adds versions of other servers beside, between and in place of this server's own.
func TestRemoteVersionsAreMerged(t *testing.T) {
	list := append(descriptors(t), customKind("docs.example.com", "widgets", "v1", "v2"))
	remote := &Remote{Versions: []RemoteVersion{
		remoteVersion("aaa.example.com", "v1", 1000, 15, apidiscoveryv2.DiscoveryFreshnessStale),
		// replaces this server's own, and comes before v1
		remoteVersion("docs.example.com", "v2", 1000, 200, apidiscoveryv2.DiscoveryFreshnessCurrent),
		remoteVersion("docs.example.com", "v3alpha1", 1000, 10, apidiscoveryv2.DiscoveryFreshnessCurrent),
		remoteVersion("top.example.com", "v1", 17780, 1, apidiscoveryv2.DiscoveryFreshnessCurrent), // between apps and events.k8s.io
		remoteVersion("top.example.com", "v2", 10, 1, apidiscoveryv2.DiscoveryFreshnessCurrent),
	}}
	current := remote
	h := New(func() []*resource.Descriptor { return list }).With(func() *Remote { return current })

	type version struct{ Version, Freshness string }
	type group struct {
		Name     string
		Versions []version
	}
	var got []group
	var said struct {
		Items []struct {
			Metadata struct{ Name string }
			Versions []version
		}
		Groups []struct {
			Name             string
			PreferredVersion version
			Versions         []version
		}
	}
	first := get(t, h, "/apis", "Accept", acceptAggregated)
	if err := json.NewDecoder(first.Body).Decode(&said); err != nil {
		t.Fatal(err)
	}
	for _, i := range said.Items {
		switch i.Metadata.Name {
		case "apps", "events.k8s.io", "aaa.example.com", "docs.example.com", "top.example.com":
			got = append(got, group{i.Metadata.Name, i.Versions})
		}
	}
	want := []group{
		{"apps", []version{{"v1", "Current"}}},
		{"top.example.com", []version{{"v2", "Current"}, {"v1", "Current"}}},
		{"events.k8s.io", []version{{"v1", "Current"}}},
		{"aaa.example.com", []version{{"v1", "Stale"}}},
		{"docs.example.com", []version{{"v2", "Current"}, {"v1", "Current"}, {"v3alpha1", "Current"}}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("aggregated (-want +got):\n%s", d)
	}

	if err := json.NewDecoder(get(t, h, "/apis").Body).Decode(&said); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, g := range said.Groups {
		names = append(names, g.Name)
	}
	if d := cmp.Diff([]string{"apps", "top.example.com", "events.k8s.io", "autoscaling", "admissionregistration.k8s.io",
		"apiextensions.k8s.io", "aaa.example.com", "docs.example.com"}, names); d != "" {
		t.Errorf("legacy (-want +got):\n%s", d)
	}
	one := decode(t, get(t, h, "/apis/docs.example.com"))
	if d := cmp.Diff(map[string]any{"groupVersion": "docs.example.com/v2", "version": "v2"}, one["preferredVersion"]); d != "" {
		t.Error(d)
	}
	if r := get(t, h, "/apis/aaa.example.com"); r.StatusCode != http.StatusOK {
		t.Errorf("a group that only others serve: %d", r.StatusCode)
	}

	if got, want := first.Header.Get("Warning"),
		`299 - "stale discovery: the API server of APIService v1.aaa.example.com cannot be discovered; see its conditions Available and DiscoveryReadable"`; got != want {
		t.Errorf("warning %q, want %q", got, want)
	}
	etag, builds := first.Header.Get("ETag"), h.Builds()
	if again := get(t, h, "/apis", "Accept", acceptAggregated, "If-None-Match", etag); again.StatusCode != http.StatusNotModified ||
		h.Builds() != builds {
		t.Errorf("unchanged: %d, made %d times", again.StatusCode, h.Builds()-builds)
	}
	current = nil
	if after := get(t, h, "/apis", "Accept", acceptAggregated, "If-None-Match", etag); after.StatusCode != http.StatusOK ||
		after.Header.Get("Warning") != "" {
		t.Errorf("changed: %d, warning %q", after.StatusCode, after.Header.Get("Warning"))
	}
	if r := get(t, h, "/apis/aaa.example.com"); r.StatusCode != http.StatusNotFound {
		t.Errorf("a group that nobody serves any more: %d", r.StatusCode)
	}
}

func TestLegacyListsBecomeAggregated(t *testing.T) {
	got := Legacy([]metav1.APIResource{
		{Name: "flunders/status", Namespaced: true, Kind: "Flunder", Verbs: []string{"get"}},
		{Name: "flunders", SingularName: "flunder", Namespaced: true, Kind: "Flunder", Verbs: []string{"list"}, ShortNames: []string{"fl"},
			Categories: []string{"all"}},
		{Name: "orphans/scale", Kind: "", Verbs: []string{"update"}},
	})
	want := []apidiscoveryv2.APIResourceDiscovery{
		{Resource: "flunders", Scope: "Namespaced", ResponseKind: &metav1.GroupVersionKind{Kind: "Flunder"}, Verbs: []string{"list"},
			ShortNames: []string{"fl"}, Categories: []string{"all"}, SingularResource: "flunder",
			Subresources: []apidiscoveryv2.APISubresourceDiscovery{{Subresource: "status", Verbs: []string{"get"},
				ResponseKind: &metav1.GroupVersionKind{Kind: "Flunder"}}}},
		{Resource: "orphans", Scope: "Cluster", ResponseKind: &metav1.GroupVersionKind{},
			Subresources: []apidiscoveryv2.APISubresourceDiscovery{{Subresource: "scale", Verbs: []string{"update"},
				ResponseKind: &metav1.GroupVersionKind{}}}},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-want +got:\n%s", d)
	}
}

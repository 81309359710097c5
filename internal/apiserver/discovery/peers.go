// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/util/sort"

	"github.com/mortise-dev/mortise/internal/apiserver/peerproxy"
)

// merged is the aggregated document of all servers of the cluster.
type merged struct {
	own     *document
	servers *peerproxy.Servers
	all     *document
}

// together returns the aggregated document of this server and the others: this server's own, if the others serve nothing else.
func (h *Handler) together(own *document, servers *peerproxy.Servers) *document {
	if len(servers.All) == 0 {
		return own
	}
	if m := h.merged.Load(); m != nil && m.own == own && m.servers == servers {
		return m.all
	}
	m := &merged{own: own, servers: servers, all: own}
	list := own.content.(*apidiscoveryv2.APIGroupDiscoveryList)
	if groups := mergeServers(list.Items, servers); !reflect.DeepEqual(groups, list.Items) {
		m.all = newAggregated(&apidiscoveryv2.APIGroupDiscoveryList{Items: groups})
	}
	h.merged.Store(m)
	return m.all
}

// mergeServers merges the groups of this server with those of others. As upstream: in the order of the servers' identities, and such that
// the order of each of them is kept.
func mergeServers(own []apidiscoveryv2.APIGroupDiscovery, servers *peerproxy.Servers) []apidiscoveryv2.APIGroupDiscovery {
	lists := map[string][]apidiscoveryv2.APIGroupDiscovery{servers.Own: own}
	for _, s := range servers.All {
		lists[s.ID] = s.Groups
	}
	var all [][]apidiscoveryv2.APIGroupDiscovery
	for _, id := range slices.Sorted(maps.Keys(lists)) {
		all = append(all, lists[id])
	}
	return merge(all, func(g *apidiscoveryv2.APIGroupDiscovery) string { return g.Name }, mergeGroups)
}

// merge merges lists: what is in several of them by name is joined. Lists that are equal stay as they are.
func merge[T any](lists [][]T, name func(*T) string, join func(a, b T) T) []T {
	by := map[string]T{}
	names := make([][]string, len(lists))
	for i, list := range lists {
		for _, item := range list {
			n := name(&item)
			if old, ok := by[n]; ok {
				item = join(old, item)
			}
			by[n] = item
			names[i] = append(names[i], n)
		}
	}
	order := names[0]
	if slices.ContainsFunc(names[1:], func(other []string) bool { return !slices.Equal(other, order) }) {
		order = sort.MergePreservingRelativeOrder(names)
	}
	out := make([]T, 0, len(order))
	for _, n := range order {
		out = append(out, by[n])
	}
	return out
}

func mergeGroups(a, b apidiscoveryv2.APIGroupDiscovery) apidiscoveryv2.APIGroupDiscovery {
	a.Versions = merge([][]apidiscoveryv2.APIVersionDiscovery{a.Versions, b.Versions},
		func(v *apidiscoveryv2.APIVersionDiscovery) string { return v.Version }, mergeVersions)
	return a
}

func mergeVersions(a, b apidiscoveryv2.APIVersionDiscovery) apidiscoveryv2.APIVersionDiscovery {
	a.Resources = merge([][]apidiscoveryv2.APIResourceDiscovery{a.Resources, b.Resources},
		func(r *apidiscoveryv2.APIResourceDiscovery) string { return r.Resource }, mergeResources)
	return a
}

// mergeResources joins the verbs and subresources of a resource that two servers serve differently.
func mergeResources(a, b apidiscoveryv2.APIResourceDiscovery) apidiscoveryv2.APIResourceDiscovery {
	if reflect.DeepEqual(a, b) {
		return a
	}
	verbs := append(slices.Clone(a.Verbs), b.Verbs...)
	slices.Sort(verbs)
	a.Verbs = slices.Compact(verbs)
	by := map[string]apidiscoveryv2.APISubresourceDiscovery{}
	for _, s := range append(slices.Clone(a.Subresources), b.Subresources...) {
		by[s.Subresource] = s
	}
	a.Subresources = nil
	for _, s := range by {
		a.Subresources = append(a.Subresources, s)
	}
	slices.SortFunc(a.Subresources, func(x, y apidiscoveryv2.APISubresourceDiscovery) int {
		return strings.Compare(x.Subresource, y.Subresource)
	})
	return a
}

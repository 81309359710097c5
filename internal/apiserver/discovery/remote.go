// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/version"
)

// Remote has the resources of aggregated API servers: one immutable state.
type Remote struct{ Versions []RemoteVersion }

// RemoteVersion is one version of a group that another server serves. It replaces this server's own, if there is one.
type RemoteVersion struct {
	Group, Version string
	// GroupPriority and VersionPriority are those of the APIService. A group has the highest priority of its versions.
	GroupPriority, VersionPriority int
	// Document is the server's last document, marked Current or Stale.
	Document apidiscoveryv2.APIVersionDiscovery
}

// ranked is a version of a group with its priorities.
type ranked struct {
	schema.GroupVersion
	group, version int
	remote         *RemoteVersion // nil: this server's own
}

// ranking has the sorted versions of each group.
type ranking map[string][]ranked

// rank combines own and remote versions of groups.
func rank(own map[string][]string, custom map[string]bool, remote *Remote) ranking {
	r := ranking{}
	if remote != nil {
		for i := range remote.Versions {
			v := &remote.Versions[i]
			if v.Group == "" {
				continue // /apis does not list the core group
			}
			r[v.Group] = append(r[v.Group], ranked{schema.GroupVersion{Group: v.Group, Version: v.Version}, v.GroupPriority, v.VersionPriority, v})
		}
	}
	for name, versions := range own {
		for _, v := range versions {
			gv := schema.GroupVersion{Group: name, Version: v}
			if slices.ContainsFunc(r[name], func(o ranked) bool { return o.Version == v }) {
				continue
			}
			group, priority := groupPriority(name), customVersion
			if !custom[name] {
				priority = versionPriority(gv)
			}
			r[name] = append(r[name], ranked{gv, group, priority, nil})
		}
	}
	for _, versions := range r {
		slices.SortFunc(versions, func(a, b ranked) int {
			return cmp.Or(cmp.Compare(b.version, a.version), version.CompareKubeAwareVersionStrings(b.Version, a.Version))
		})
	}
	return r
}

// priority returns the priority of a group: the highest of its versions'.
func (r ranking) priority(group string) int {
	highest := 0
	for _, v := range r[group] {
		highest = max(highest, v.group)
	}
	return highest
}

// groups returns the names in the order of the aggregated document: by priority, then by name.
func (r ranking) groups() []string {
	return r.sorted(func(group string) string { return group })
}

// legacy returns the names in the order of /apis: by priority, then by the group's first VERSION.GROUP of this
// priority.
func (r ranking) legacy() []string {
	return r.sorted(func(group string) string {
		highest, first := r.priority(group), ""
		for _, v := range r[group] {
			if name := v.Version + "." + group; v.group == highest && (first == "" || name < first) {
				first = name
			}
		}
		return first
	})
}

func (r ranking) sorted(key func(group string) string) []string {
	type ranked struct {
		group, key string
		priority   int
	}
	groups := make([]ranked, 0, len(r))
	for g := range r {
		groups = append(groups, ranked{g, key(g), r.priority(g)})
	}
	slices.SortFunc(groups, func(a, b ranked) int { return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.key, b.key)) })
	names := make([]string, len(groups))
	for i, p := range groups {
		names[i] = p.group
	}
	return names
}

// namedStale is the maximum number of stale versions that a warning names.
const namedStale = 10

// warning returns a Warning header that names the versions whose servers do not respond; empty: all do. Clients
// silently skip stale versions, but kubectl prints warnings: so a user who misses a resource learns the reason.
func (r ranking) warning() string {
	var names []string
	for _, versions := range r {
		for _, v := range versions {
			if v.remote != nil && v.remote.Document.Freshness == apidiscoveryv2.DiscoveryFreshnessStale {
				names = append(names, v.Version+"."+v.Group)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	more := ""
	if n := len(names) - namedStale; n > 0 {
		names, more = names[:namedStale], fmt.Sprintf(" and %d more", n)
	}
	text, err := net.NewWarningHeader(299, "-",
		"stale discovery: the API server of APIService "+strings.Join(names, ", ")+more+
			" cannot be discovered; see its conditions Available and DiscoveryReadable")
	if err != nil {
		return "" // a header cannot contain such a name
	}
	return text
}

// Legacy converts a version's APIResource list to the aggregated form. A subresource of an unknown resource gets a
// resource without a kind. A subresource's scope is ignored if it differs from its resource's.
func Legacy(list []metav1.APIResource) []apidiscoveryv2.APIResourceDiscovery {
	var out []apidiscoveryv2.APIResourceDiscovery
	at := map[string]int{}
	scope := func(namespaced bool) apidiscoveryv2.ResourceScope {
		if namespaced {
			return apidiscoveryv2.ScopeNamespace
		}
		return apidiscoveryv2.ScopeCluster
	}
	for _, r := range list {
		if _, _, sub := strings.Cut(r.Name, "/"); sub {
			continue
		}
		at[r.Name] = len(out)
		out = append(out, apidiscoveryv2.APIResourceDiscovery{
			Resource: r.Name, Scope: scope(r.Namespaced), ResponseKind: &metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind},
			Verbs: r.Verbs, ShortNames: r.ShortNames, Categories: r.Categories, SingularResource: r.SingularName,
		})
	}
	for _, r := range list {
		parent, name, sub := strings.Cut(r.Name, "/")
		if !sub {
			continue
		}
		i, ok := at[parent]
		if !ok {
			i = len(out)
			at[parent] = i
			out = append(out, apidiscoveryv2.APIResourceDiscovery{Resource: parent, Scope: scope(r.Namespaced),
				ResponseKind: &metav1.GroupVersionKind{}})
		}
		s := apidiscoveryv2.APISubresourceDiscovery{Subresource: name, Verbs: r.Verbs, ResponseKind: &metav1.GroupVersionKind{}}
		if r.Kind != "" {
			*s.ResponseKind = metav1.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
		}
		out[i].Subresources = append(out[i].Subresources, s)
	}
	return out
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package discovery

import (
	"cmp"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/resource"
)

// documents are all responses for one list of descriptors. They are immutable.
type documents struct {
	from   []*resource.Descriptor
	remote *Remote

	groups     *document            // /apis
	group      map[string]*document // /apis/GROUP
	version    map[string]*document // /apis/GROUP/VERSION, by "GROUP/VERSION"; "v1" is /api/v1
	aggregated *document            // /apis
	core       *document            // /api, aggregated
	custom     map[string]bool      // groups that only CRDs serve
	warning    string               // the Warning header that names versions whose servers do not respond; empty: all do
}

// entry is one resource in one version.
type entry struct {
	d *resource.Descriptor
	v *resource.Version
}

func build(list []*resource.Descriptor, remote *Remote) *documents {
	docs := &documents{
		from:    slices.Clone(list),
		remote:  remote,
		group:   map[string]*document{},
		version: map[string]*document{},
		custom:  map[string]bool{},
	}
	byVersion := map[schema.GroupVersion][]entry{}
	versions := map[string][]string{}
	for _, d := range list {
		isCustom, known := docs.custom[d.Group]
		docs.custom[d.Group] = custom(d) && (isCustom || !known)
		for i := range d.Versions {
			v := &d.Versions[i]
			if v.Unserved || d.Hidden {
				continue
			}
			gv := schema.GroupVersion{Group: d.Group, Version: v.Name}
			if byVersion[gv] == nil {
				versions[d.Group] = append(versions[d.Group], v.Name)
			}
			byVersion[gv] = append(byVersion[gv], entry{d, v})
		}
	}

	ranks := rank(versions, docs.custom, remote)
	for name := range ranks {
		if len(versions[name]) == 0 {
			docs.custom[name] = true // its versions are plain handlers
		}
	}
	docs.warning = ranks.warning()
	legacy := map[string]metav1.APIGroup{}
	var aggregated, core apidiscoveryv2.APIGroupDiscoveryList
	aggregated.Items, core.Items = []apidiscoveryv2.APIGroupDiscovery{}, []apidiscoveryv2.APIGroupDiscovery{}
	for _, name := range ranks.groups() {
		g := metav1.APIGroup{Name: name}
		ag := apidiscoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: name}}
		for _, r := range ranks[name] {
			gv, v := r.GroupVersion, r.Version
			g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: v})
			if r.remote != nil {
				ag.Versions = append(ag.Versions, r.remote.Document)
				continue
			}
			entries := byVersion[gv]
			byName := slices.Clone(entries)
			slices.SortFunc(byName, func(a, b entry) int { return cmp.Compare(a.d.Resource, b.d.Resource) })
			if !docs.custom[name] { // CRDs stay in order of arrival
				entries = byName
			}
			resources := metav1.APIResourceList{
				TypeMeta:     metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"},
				GroupVersion: gv.String(),
				APIResources: []metav1.APIResource{},
			}
			if name == "" {
				resources.APIVersion = ""
			}
			av := apidiscoveryv2.APIVersionDiscovery{Version: v, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
			for _, e := range entries {
				resources.APIResources = e.legacy(resources.APIResources)
			}
			for _, e := range byName {
				av.Resources = append(av.Resources, e.aggregated())
			}
			docs.version[gv.String()] = newDocument(&resources)
			ag.Versions = append(ag.Versions, av)
		}
		if name == "" {
			core.Items = append(core.Items, ag)
			continue
		}
		g.PreferredVersion = g.Versions[0]
		legacy[name] = g
		aggregated.Items = append(aggregated.Items, ag)
		g.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		docs.group[name] = newDocument(&g)
	}
	all := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}, Groups: []metav1.APIGroup{}}
	for _, name := range ranks.legacy() {
		if g, ok := legacy[name]; ok {
			all.Groups = append(all.Groups, g)
		}
	}
	docs.groups = newDocument(&all)
	docs.aggregated, docs.core = newAggregated(&aggregated), newAggregated(&core)
	return docs
}

func newAggregated(list *apidiscoveryv2.APIGroupDiscoveryList) *document {
	untyped := *list // the ETag is that of the list without its type
	list.TypeMeta = metav1.TypeMeta{Kind: "APIGroupDiscoveryList", APIVersion: "apidiscovery.k8s.io/v2"}
	doc := newDocument(list)
	doc.etag = sync.OnceValues(func() (string, error) {
		b, err := json.Marshal(&untyped)
		if err != nil {
			return "", fmt.Errorf("encode aggregated discovery: %w", err)
		}
		return fmt.Sprintf(`"%X"`, sha512.Sum512(b)), nil
	})
	return doc
}

// custom reports whether a kind comes from a CRD.
func custom(d *resource.Descriptor) bool {
	hub := d.Hub()
	if hub == nil || hub.New == nil {
		return false
	}
	_, ok := hub.New().(*unstructured.Unstructured)
	return ok
}

func (e entry) verbs() []string {
	if e.d.Announced != nil {
		return e.d.Announced
	}
	if e.d.Verbs != nil {
		return e.d.Verbs
	}
	return []string{"create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"}
}

// subresources returns the subresources of the version: sorted for built-in kinds, in the descriptor's order for CRDs.
func (e entry) subresources() []*resource.Subresource {
	var subs []*resource.Subresource
	for i := range e.d.Subresources {
		if s := &e.d.Subresources[i]; s.Versions == nil || slices.Contains(s.Versions, e.v.Name) {
			subs = append(subs, s)
		}
	}
	if !custom(e.d) {
		slices.SortStableFunc(subs, func(a, b *resource.Subresource) int { return strings.Compare(a.Name, b.Name) })
	}
	return subs
}

// kind returns the kind of a subresource. Its group and version are empty if they are the parent's.
func (e entry) kind(s *resource.Subresource) metav1.GroupVersionKind {
	gvk := s.GroupVersionKind
	if gvk.Kind == "" {
		return metav1.GroupVersionKind{Kind: e.d.Kind}
	}
	if gvk.Group == e.d.Group && (gvk.Version == e.v.Name || gvk.Version == "") {
		return metav1.GroupVersionKind{Kind: gvk.Kind}
	}
	return metav1.GroupVersionKind(gvk)
}

func (e entry) legacy(to []metav1.APIResource) []metav1.APIResource {
	r := metav1.APIResource{
		Name: e.d.Resource, SingularName: e.d.Singular, Namespaced: e.d.Namespaced, Kind: e.d.Kind,
		Verbs: e.verbs(), ShortNames: e.d.ShortNames, Categories: e.d.Categories,
	}
	if slices.Contains(r.Verbs, "watch") || slices.Contains(r.Verbs, "delete") {
		r.StorageVersionHash = storageVersionHash(e.d)
	}
	to = append(to, r)
	for _, s := range e.subresources() {
		gvk := e.kind(s)
		to = append(to, metav1.APIResource{
			Name: e.d.Resource + "/" + s.Name, Namespaced: e.d.Namespaced, Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind,
			Verbs: verbs(s),
		})
	}
	return to
}

func (e entry) aggregated() apidiscoveryv2.APIResourceDiscovery {
	r := apidiscoveryv2.APIResourceDiscovery{
		Resource: e.d.Resource, SingularResource: e.d.Singular, Scope: apidiscoveryv2.ScopeCluster,
		ResponseKind: &metav1.GroupVersionKind{Kind: e.d.Kind},
		Verbs:        e.verbs(), ShortNames: e.d.ShortNames, Categories: e.d.Categories,
	}
	if e.d.Namespaced {
		r.Scope = apidiscoveryv2.ScopeNamespace
	}
	if custom(e.d) {
		r.ResponseKind.Group, r.ResponseKind.Version = e.d.Group, e.v.Name
	}
	for _, s := range e.subresources() {
		gvk := e.kind(s)
		if custom(e.d) && gvk.Group == "" {
			gvk.Group, gvk.Version = e.d.Group, e.v.Name
		}
		r.Subresources = append(r.Subresources, apidiscoveryv2.APISubresourceDiscovery{Subresource: s.Name, ResponseKind: &gvk, Verbs: verbs(s)})
	}
	return r
}

// verbs returns the verbs of a subresource in the order of discovery.
func verbs(s *resource.Subresource) []string {
	v := slices.Clone(s.Verbs)
	slices.Sort(v)
	return v
}

// storageVersionHash returns a hash that changes with the stored version of a kind. For definitions it is kube-apiserver's, which stores
// them as v1beta1.
func storageVersionHash(d *resource.Descriptor) string {
	gv := d.StoredGroupVersion()
	if d.Group == "apiextensions.k8s.io" && d.Resource == "customresourcedefinitions" {
		gv.Version = "v1beta1"
	}
	sum := sha256.Sum256([]byte(gv.Group + "/" + gv.Version + "/" + d.Kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}

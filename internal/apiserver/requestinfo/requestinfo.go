// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package requestinfo reads from a request's method, path and query what it asks for: the first stage of the pipeline.
//
// [Parse] follows the shape of Kubernetes' paths:
//
//	/api/v1/namespaces/NS/pods/NAME/log          core group
//	/apis/apps/v1/namespaces/NS/deployments      every other group
//	/apis/GROUP/VERSION/RESOURCE/NAME            cluster-scoped
//	/healthz, /version, /apis, /apis/GROUP       no resource
//
// The answer is k8s.io/apiserver's RequestInfo, so that authorizers and CEL libraries written to it work here.
package requestinfo

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/selectors"
)

// Info is what a request asks for.
type Info = request.RequestInfo

// Parse reads a request. It never fails: what is not a resource's path is a non-resource request. See [Check].
func Parse(r *http.Request) *Info {
	path := r.URL.Path
	i := &Info{Path: path, Verb: strings.ToLower(r.Method)}
	trimmed := strings.Trim(path, "/")
	core := strings.HasPrefix(trimmed, "api/")
	if !core && !strings.HasPrefix(trimmed, "apis/") {
		return i
	}
	parts := strings.Split(trimmed, "/")
	i.APIPrefix = parts[0]
	rest := parts[1:]
	if !core {
		if len(rest) < 3 {
			if len(rest) > 0 {
				i.APIGroup = rest[0]
			}
			if len(rest) > 1 {
				i.APIVersion = rest[1]
			}
			return i
		}
		i.APIGroup = rest[0]
		rest = rest[1:]
	}
	i.APIVersion = rest[0]
	rest = rest[1:]
	if len(rest) == 0 {
		return i
	}
	i.IsResourceRequest = true

	viaPath := false
	switch rest[0] {
	case "watch", "proxy": // the deprecated form /watch/…, and one that is gone
		if len(rest) < 2 {
			return i
		}
		i.Verb, viaPath = rest[0], true
		rest = rest[1:]
	default:
		switch r.Method {
		case http.MethodPost:
			i.Verb = "create"
		case http.MethodGet, http.MethodHead:
			i.Verb = "get"
		case http.MethodPut:
			i.Verb = "update"
		case http.MethodPatch:
			i.Verb = "patch"
		case http.MethodDelete:
			i.Verb = "delete"
		default:
			i.Verb = ""
		}
	}
	if rest[0] == "namespaces" {
		if len(rest) > 1 {
			i.Namespace = rest[1]
			// what follows is a resource in the namespace, unless it is a subresource of the namespace itself
			if len(rest) > 2 && rest[2] != "status" && rest[2] != "finalize" {
				rest = rest[2:]
			}
		}
	}
	i.Parts = rest
	i.Resource = rest[0]
	if len(rest) > 1 {
		i.Name = rest[1]
	}
	if len(rest) > 2 && i.Verb != "proxy" {
		i.Subresource = rest[2]
	}
	collection(i, r.URL)
	if !viaPath && r.URL.RawQuery != "" {
		switch i.Verb {
		case "list", "watch", "deletecollection": // what selectors narrow, an authorizer may allow
			q := r.URL.Query()
			i.FieldSelector, i.LabelSelector = q.Get("fieldSelector"), q.Get("labelSelector")
		}
	}
	return i
}

// Check refuses the one form of path that [Parse] cannot read: a special verb with nothing behind it.
func Check(i *Info, u *url.URL) error {
	if i.IsResourceRequest && i.Parts == nil {
		return fmt.Errorf("unable to determine kind and namespace from url, %v", u)
	}
	return nil
}

// collection finds the verbs of requests without a name in the path.
func collection(i *Info, u *url.URL) {
	if i.Name == "" && i.Verb == "get" {
		i.Verb = "list"
		if u.RawQuery != "" {
			q := u.Query()
			if truth(q, "watch") {
				i.Verb = "watch"
			}
			if q.Has("fieldSelector") {
				i.Name = selected(q)
			}
		}
		return
	}
	if i.Name == "" && i.Verb == "delete" {
		i.Verb = "deletecollection"
	}
}

// selected is the one name that a query selects: the request is authorized as that name. A query of which anything cannot be
// read selects none.
func selected(q url.Values) string {
	var o metav1.ListOptions
	if err := scheme.ParameterCodec.DecodeParameters(q, metav1.SchemeGroupVersion, &o); err != nil {
		return ""
	}
	if _, err := selectors.ParseLabels(o.LabelSelector); err != nil {
		return ""
	}
	selector, err := selectors.ParseFields(o.FieldSelector)
	if err != nil {
		return ""
	}
	name, ok := selector.RequiresExactMatch("metadata.name")
	if !ok || !validSegment(name) {
		return ""
	}
	return name
}

func truth(q url.Values, key string) bool {
	v, ok := q[key]
	if !ok || len(v) == 0 {
		return false
	}
	return v[0] != "0" && !strings.EqualFold(v[0], "false")
}

func validSegment(name string) bool {
	return name != "." && name != ".." && !strings.ContainsAny(name, "/%")
}

// Connects reports whether a request is a connection to a pod, a service or a node: admission sees it as one, whatever its method.
func Connects(i *Info) bool {
	if !i.IsResourceRequest {
		return false
	}
	switch i.Subresource {
	case "exec", "attach", "portforward":
		return i.APIGroup == "" && i.Resource == "pods"
	case "proxy":
		return i.APIGroup == "" && (i.Resource == "pods" || i.Resource == "services" || i.Resource == "nodes")
	}
	return false
}

// Writes reports whether a request changes objects.
func Writes(i *Info) bool {
	if !i.IsResourceRequest {
		return false
	}
	switch i.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
		return true
	}
	return false
}

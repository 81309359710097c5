// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mortise-dev/mortise/resource"
)

// Requests for custom resources pass no router in kube-apiserver: one handler finds the definition by the request's info, and
// what it does not serve is left to one that knows no page. So the same mistakes get other answers than with built-in kinds.

// custom reports whether all kinds of a group came at run time.
func custom(group map[string]*Kind) bool {
	for _, k := range group {
		if !k.Unstructured {
			return false
		}
	}
	return len(group) > 0
}

func noPage(w http.ResponseWriter) error {
	http.Error(w, "404 page not found", http.StatusNotFound)
	return nil
}

// subresourceOf finds a kind's subresource in a version: versions may have others of the same name, or none.
func subresourceOf(k *Kind, name, version string) *resource.Subresource {
	for i := range k.Subresources {
		if s := &k.Subresources[i]; s.Name == name && (s.Versions == nil || slices.Contains(s.Versions, version)) {
			return s
		}
	}
	return nil
}

// serveCustom answers a request for a custom resource; its version is below 0 if the kind does not have the one of the path.
func (q *req) serveCustom() error {
	info, k, version := q.info, q.kind, q.version
	all := info.Verb == "list" || info.Verb == "watch" // which may be for all namespaces
	if version < 0 || k.Versions[version].Unserved || !k.Namespaced && info.Namespace != "" || k.Namespaced && info.Namespace == "" && !all {
		return noPage(q.w)
	}
	if k.Unusable != nil {
		return k.Unusable
	}
	if len(info.Parts) > 1 {
		q.name = info.Parts[1]
	}
	var verb func(*req) error
	if info.Subresource != "" {
		q.sub = subresourceOf(k, info.Subresource, info.APIVersion)
		switch {
		case q.sub == nil:
			verb = func(*req) error { return apierrors.NewNotFound(q.gr(), info.Name) } // of a version that may be deprecated
		case info.Verb == "get" && q.sub.View != nil:
			verb = getView
		case info.Verb == "get":
			verb = get
		case info.Verb != "watch":
			verb = q.subresourceVerb()
		}
	} else {
		verb = q.customVerb()
	}
	if verb == nil {
		return apierrors.NewMethodNotSupported(q.gr(), info.Verb)
	}
	return q.run(verb)
}

func (q *req) customVerb() func(*req) error {
	switch q.info.Verb {
	case "get":
		return get
	case "list":
		return list
	case "watch":
		return watch
	case "create":
		q.name = "" // it has no meaning; the object has its own name
		return create
	case "update":
		return needsName(update)
	case "patch":
		return needsName(patch)
	case "delete":
		return needsName(deleteOne)
	case "deletecollection":
		return deleteCollection
	}
	return nil
}

// needsName refuses a request without a name in the path.
func needsName(verb func(*req) error) func(*req) error {
	return func(q *req) error {
		if q.name == "" {
			return apierrors.NewBadRequest("name must be provided") // upstream's words
		}
		return verb(q)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package verbs answers requests for resources: get, list, watch, create, update, patch, delete, deletecollection and
// connect, a file each, for whatever kinds it is given. Built-in kinds and kinds from CRDs go the same way.
//
// It is the HTTP of stored objects, and no more: package registry below it reads and writes them. [API.Serve] finds the
// kind of a path and calls its verb. A verb reads and validates the request (options.go, decode.go, negotiate.go), then
// either lets the registry find records and splices existing bytes (respond.go, liststream.go, watchstream.go; answer.go
// streams long responses), or hands the object to the registry's writer, with admission as functions that the writer calls
// (create.go, update.go, patch.go, delete.go).
//
// # Concurrency
//
// An API is safe for concurrent use.
package verbs

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
	"github.com/mortise-dev/mortise/internal/apiserver/segments"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
)

// Kind is a descriptor at work.
type Kind = registry.Kind

// FieldManager keeps metadata.managedFields. Objects are hub objects; live is shared, obj is the caller's own.
type FieldManager interface {
	registry.FieldManager

	// Answered is Update for an object that a POST below another brings and is answered with.
	Answered(gvk schema.GroupVersionKind, subresource string, obj resource.Object, empty func() resource.Object,
		manager string) resource.Object

	// The same for a Scale, whose entries are made of its parent's before a write and brought back afterwards.
	ScaleEntries(d *resource.Descriptor, version string, parent resource.Object) ([]metav1.ManagedFieldsEntry, error)
	UpdateScale(before, after resource.Object, manager string) (resource.Object, error)
	ApplyScale(before resource.Object, patch *unstructured.Unstructured, manager string, force bool) (resource.Object, error)
	ParentEntries(d *resource.Descriptor, version string, parent resource.Object,
		scale []metav1.ManagedFieldsEntry) ([]metav1.ManagedFieldsEntry, error)
}

// Options of [New]. Registry is required.
type Options struct {
	Registry  *registry.Registry
	Admission admit.Chain
	Fields    FieldManager         // nil: managedFields are left as they are
	Authorize authorize.Authorizer // decides whether an update may create; nil: it may
	// MaxBody bounds a request's body; 0: 3 MiB.
	MaxBody int64
	// Initialization is of objects that wait for initializers; nil: none does.
	Initialization *Initialization
}

// API serves resources.
type API struct {
	Options
	kinds    *registry.Kinds
	reader   *registry.Reader
	writer   *registry.Writer
	backend  *registry.Backend
	lagging  *registry.Backend // for admission
	lifetime *watchcache.Lifetime
	accepts  acceptCache
	segments *segments.Cache
}

// New makes an API whose watches run until lifetime ends.
func New(lifetime *watchcache.Lifetime, o Options) *API {
	if o.MaxBody == 0 {
		o.MaxBody = 3 << 20
	}
	boundCopies()
	backend := o.Registry.Backend()
	return &API{
		Options: o, lifetime: lifetime, segments: segments.NewCache(segmentsKept),
		kinds: o.Registry.Kinds(), reader: o.Registry.Reader(), writer: o.Registry.Writer(), backend: backend,
		lagging: backend.Lagging(),
	}
}

// req is one request at a verb.
type req struct {
	*API
	w        http.ResponseWriter
	r        *http.Request
	ctx      context.Context
	info     *requestinfo.Info
	observer Observer
	kind     *Kind
	version  int // index in kind.Versions
	sub      *resource.Subresource
	ns       string
	name     string // of the path; empty for collections
	user     user.Info
	accept   *accept
	warn     *warnings
	said     schema.GroupVersionKind // what the body calls itself, if that is not the path's kind; see decoder

	spending admit.Spending // of its admission
}

func (q *req) ver() *resource.Version { return &q.kind.Versions[q.version] }

func (q *req) gr() schema.GroupResource { return q.kind.GroupResource() }

// NotFound returns the 404 of a path in a served group without such a resource.
func NotFound() error { return status.Route(http.StatusNotFound, "") }

// Observer learns what became of a request on its way.
type Observer interface {
	// Routed is called when a kind and a verb have been found for the request; deprecated is true if the kind's version is deprecated.
	Routed(deprecated bool)
}

// Serve answers a request for a resource.
func (a *API) Serve(w http.ResponseWriter, r *http.Request, info *requestinfo.Info, o Observer) {
	if err := a.serve(w, r, info, o); err != nil {
		if r.Context().Err() != nil && info.Verb == "watch" {
			return
		}
		status.Write(w, r, err)
	}
}

func (a *API) serve(w http.ResponseWriter, r *http.Request, info *requestinfo.Info, o Observer) error {
	group := a.kinds.Group(info.APIGroup)
	k := group[info.Resource]
	if k == nil {
		if custom(group) {
			return noPage(w)
		}
		return NotFound()
	}
	version := slices.IndexFunc(k.Versions, func(v resource.Version) bool { return v.Name == info.APIVersion })
	if k.Unstructured {
		q := &req{API: a, w: w, r: r, info: info, observer: o, kind: k, version: version, ns: info.Namespace}
		return q.serveCustom()
	}
	if version < 0 || k.Versions[version].Unserved || strayed(k, info) {
		return NotFound()
	}
	q := &req{API: a, w: w, r: r, info: info, observer: o, kind: k, version: version}
	if k.Namespaced {
		q.ns = info.Namespace
	}
	if len(info.Parts) > 1 {
		q.name = info.Parts[1]
	}
	if info.Subresource != "" {
		q.sub = k.Subresource(info.Subresource)
		if q.sub == nil || q.sub.Versions != nil && !slices.Contains(q.sub.Versions, info.APIVersion) {
			return NotFound()
		}
		if len(info.Parts) > 3 && (q.sub.Connect == nil || !q.sub.Connect.TakesPath) {
			return NotFound()
		}
	}
	verb := q.verb()
	if verb == nil {
		if q.name != "" && q.sub == nil && !q.named() {
			return NotFound()
		}
		return status.Route(http.StatusMethodNotAllowed, "")
	}
	return q.run(verb)
}

// named reports whether each object of the kind has a path. Objects that are not stored have none.
func (q *req) named() bool {
	return q.kind.Verbs == nil || slices.ContainsFunc(q.kind.Verbs, func(v string) bool {
		return v == "get" || v == "update" || v == "patch" || v == "delete"
	})
}

// run answers by the verb that was found.
func (q *req) run(verb func(*req) error) error {
	q.user, _ = request.UserFrom(q.r.Context())
	q.warn = &warnings{header: q.w.Header()}
	q.ctx = q.r.Context()
	if err := q.route(); err != nil {
		return err
	}
	q.observer.Routed(q.ver().Deprecation != "")
	if v := q.ver(); v.Deprecation != "" && (q.sub == nil || q.kind.Unstructured || q.sub.GroupVersionKind.Empty()) {
		q.warn.AddWarning("", v.Deprecation)
		q.auditDeprecated()
	}
	if q.name != "" {
		if faults := path.IsValidPathSegmentName(q.name); len(faults) > 0 {
			return apierrors.NewBadRequest(fmt.Sprintf("Name parameter invalid: %q: %s", q.name, strings.Join(faults, ";")))
		}
	}
	return verb(q)
}

// strayed reports whether a path names a kind in a way that none of its routes has.
func strayed(k *Kind, info *requestinfo.Info) bool {
	switch {
	case info.Verb == "proxy", info.Verb == "watch" &&
		(info.Subresource != "" || k.Verbs != nil && !slices.Contains(k.Verbs, "watch") && byPrefix(info)):
		return true
	case k.Namespaced:
		return info.Namespace == "" && (len(info.Parts) > 1 || k.Verbs != nil && !slices.Contains(k.Verbs, "list"))
	case info.Namespace == "":
		return false
	}
	own := k.Group == "" && k.Resource == "namespaces" && info.Name == info.Namespace
	return !own || strings.Contains(info.Path, "/namespaces/"+info.Namespace+"/namespaces")
}

// byPrefix reports whether the path itself begins with the verb watch: /api/v1/watch/… That form is for collections and objects
// of kinds that can be watched; below an object there is no such path.
func byPrefix(info *requestinfo.Info) bool {
	parts := strings.SplitN(strings.Trim(info.Path, "/"), "/", 5)
	at := 2
	if info.APIPrefix == "apis" {
		at = 3
	}
	return len(parts) > at && parts[at] == "watch"
}

// verb is the function for the request's method and path, nil when there is none.
func (q *req) verb() func(*req) error {
	if q.kind.Namespaced && q.ns == "" && (q.name != "" || q.info.Verb != "list" && q.info.Verb != "watch") {
		return nil
	}
	if q.info.Verb == "watch" && q.r.Method != http.MethodGet {
		return nil
	}
	if q.sub != nil {
		return q.subresourceVerb()
	}
	var f func(*req) error
	verb := ""
	if q.name == "" {
		switch q.r.Method {
		case http.MethodGet:
			if verb, f = "list", list; q.info.Verb == "watch" {
				verb, f = "watch", watch
			}
		case http.MethodPost:
			verb, f = "create", create
		case http.MethodDelete:
			verb, f = "deletecollection", deleteCollection
		}
	} else {
		switch q.r.Method {
		case http.MethodGet:
			if verb, f = "get", get; q.info.Verb == "watch" {
				verb, f = "watch", watch
			}
		case http.MethodPut:
			verb, f = "update", update
		case http.MethodPatch:
			verb, f = "patch", patch
		case http.MethodDelete:
			verb, f = "delete", deleteOne
		}
	}
	if q.ver().Derived != nil {
		f = derived[verb]
		if verb == "watch" && q.name == "" {
			return f // it is a list with a parameter that cannot be had
		}
	}
	if f == nil || q.kind.Verbs != nil && !slices.Contains(q.kind.Verbs, verb) {
		return nil
	}
	return f
}

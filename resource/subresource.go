// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"context"
	"net/http"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Subresource is one path below an object. Exactly one of Strategy, View, Create and Connect is set.
type Subresource struct {
	Name string
	// GroupVersionKind is the kind that the path speaks; zero: the parent's own.
	GroupVersionKind schema.GroupVersionKind
	Verbs            []string
	// Versions limits it to some served versions of the parent; nil: all.
	Versions []string

	// Strategy: get, update and patch of the parent object under other rules (status, resize, ephemeralcontainers, finalize).
	Strategy *Strategy
	// View: get, update and patch of another kind that is a window on the parent (scale).
	View *View
	// Create: a POST that acts on the parent (binding, eviction, token).
	Create *Create
	// Connect: bytes streamed (log, exec, attach, portforward, proxy).
	Connect *Connect
}

// View is a window on the parent.
type View struct {
	New func() Object
	// Get makes the view of a parent. Set writes a validated view into a parent, which is the caller's own; its error is a
	// *field.ErrorList's aggregate or an API status.
	Get func(parent Object) (Object, error)
	// Edit makes the view from which a write starts, for parents that have no view to read; nil: Get.
	Edit func(parent Object) (Object, error)
	// Written makes the view that a write answers with, where the parent may then have none to be shown; nil: Get.
	Written func(parent Object) (Object, error)
	Set     func(view, parent Object) error
	// Strategy validates the view; only Validate and ValidateUpdate are used.
	Strategy Strategy
}

// Create is a POST that acts on the parent.
type Create struct {
	New     func() Object
	Default func(obj Object)
	// Do acts, and returns the answer. opts.DryRun is honoured by Backend.
	Do func(ctx context.Context, b Backend, namespace, name string, obj Object, opts *metav1.CreateOptions) (runtime.Object, error)
}

// Connect makes the handler that streams.
type Connect struct {
	// Options decodes and validates the query; its result is the object of CONNECT in admission.
	Options func(q url.Values) (runtime.Object, error)
	// Handler serves one request. path is the part of the URL after the subresource (proxy).
	Handler func(ctx context.Context, b Backend, namespace, name string, opts runtime.Object, path string) (http.Handler, error)
	// AsCreate requires the verb create of every client that connects, whatever the method of the request: a WebSocket is
	// opened with GET, and running a command is not reading.
	AsCreate bool
	// TakesPath is set if the URL may continue after the subresource, as that of a proxy. Without it no such path exists.
	TakesPath bool
}

// Backend is the part of the API server that a kind's own actions use. Each call uses the same store path as a request's,
// without authorization and admission.
type Backend interface {
	// Get returns the hub object, shared and read-only; an API NotFound error if absent.
	Get(ctx context.Context, r schema.GroupResource, namespace, name string) (Object, error)
	// List returns all hub objects of a namespace ("" is all), shared and read-only.
	List(ctx context.Context, r schema.GroupResource, namespace string) ([]Object, error)
	// Update lets change edit a copy of the newest object and stores it, again on conflict. change's error ends it.
	Update(ctx context.Context, r schema.GroupResource, namespace, name string, dryRun bool, change func(obj Object) error) (Object, error)
	// Replace is Update for a change of which the server is sure: with makes the new object of the newest one, which is shared and
	// read-only, and what lies below it may be that one's. The new object belongs to the server then, and has to be what would be
	// read back once stored: no list or map without elements, times in whole seconds.
	Replace(ctx context.Context, r schema.GroupResource, namespace, name string, dryRun bool,
		with func(newest Object) (Object, error)) (Object, error)
	// Create stores obj as its kind's create would, without admission.
	Create(ctx context.Context, r schema.GroupResource, obj Object, dryRun bool) (Object, error)
	// Delete deletes as a client's DELETE would, without admission.
	Delete(ctx context.Context, r schema.GroupResource, namespace, name string, opts *metav1.DeleteOptions) error

	Services
}

// Services are the abilities of a [Backend] besides reading and writing objects.
type Services interface {
	// Node returns where the named node's agent answers, as https://host:port, and the transport that it trusts.
	Node(ctx context.Context, name string) (*url.URL, http.RoundTripper, error)
	// IssueToken signs a service account token. Its audiences may differ from the claims, and its lifetime may be shorter.
	IssueToken(ctx context.Context, claims TokenClaims) (IssuedToken, error)
}

// ServerWriter is an optional interface of a [Backend]: it records the server itself as the manager of the fields, as
// kube-apiserver's own clients do.
type ServerWriter interface {
	// UpdateAsServer is Update by way of a subresource ("status"), with the server in the managed fields.
	UpdateAsServer(ctx context.Context, r schema.GroupResource, namespace, name, sub string, dryRun bool,
		change func(obj Object) error) (Object, error)
}

// RecordStore is an optional interface of a [Backend]: it stores records that are not objects, which all servers of a store
// share.
type RecordStore interface {
	// Record reads the value under a key below the root of all keys ("ranges/servicenodeports"), and its revision; 0 when
	// there is none.
	Record(ctx context.Context, key string) (value []byte, revision int64, err error)
	// SetRecord writes the value in the place of the one of that revision (0: of none), and reports whether that still stood.
	SetRecord(ctx context.Context, key string, value []byte, revision int64) (bool, error)
}

// TokenClaims are the claims of a service account token.
type TokenClaims struct {
	Namespace, ServiceAccount, ServiceAccountUID string
	Audiences                                    []string
	Seconds                                      int64 // how long it is valid
	PodName, PodUID, NodeName, NodeUID           string
	SecretName, SecretUID                        string
}

// IssuedToken is a service-account token with what became of the claims.
type IssuedToken struct {
	Token     string
	Expires   metav1.Time
	Audiences []string
	Seconds   int64
}

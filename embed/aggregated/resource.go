// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package aggregated

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"github.com/mortise-dev/mortise/resource"
)

// Object is an object of a kind: a pointer to a Go struct with metadata, or an *unstructured.Unstructured.
type Object = resource.Object

// Resource is one kind in one group version, and the functions that serve it. Group, Version, Name and Kind are required, and one of List,
// Get and Answer.
//
// An error of a function reaches the client unchanged if it is one of k8s.io/apimachinery/pkg/api/errors (NewNotFound, NewConflict,
// NewInvalid …), else as 500 with its text. The server does not change objects that a function returns; the response contains their
// apiVersion and kind.
type Resource struct {
	Group, Version, Kind string
	Name                 string // plural, as in the path: "greetings"
	Singular             string // empty: Kind in small letters
	ShortNames           []string
	Categories           []string
	Namespaced           bool

	// New returns an empty object into which the server decodes objects for Create and Update; nil: *unstructured.Unstructured.
	New func() Object

	// List returns all objects in r.Namespace, or in all namespaces if that is empty. List may ignore the selectors: the server filters the
	// result.
	List func(ctx context.Context, r *Request) (List, error)
	// Get returns the object r.Name; nil: the server looks for the name in the result of List.
	Get func(ctx context.Context, r *Request) (Object, error)
	// Watch sends the events after r.Options.ResourceVersion until ctx ends; the server filters them by the selectors. For
	// selectors other than names, Watch itself must send an object that no longer matches as Deleted.
	Watch func(ctx context.Context, r *Request) (watch.Interface, error)
	// Create stores a new object, and returns it as stored. If obj has no name but a generateName, Create has to choose the name.
	Create func(ctx context.Context, r *Request, obj Object) (Object, error)
	// Update replaces the object r.Name, and returns it as stored. Patches call it too: obj is then the patched result of Get, with its
	// resourceVersion.
	Update func(ctx context.Context, r *Request, obj Object) (Object, error)
	// Delete deletes the object r.Name, and returns the response: the object, or nil for a Status of success.
	Delete func(ctx context.Context, r *Request) (Object, error)

	// Answer, if set, serves every GET of the resource, of the collection and of single names; the server then does not call the reading
	// functions above. The request is authenticated and authorized; see [From].
	Answer http.HandlerFunc

	// Columns are the columns of kubectl get after the name; nil: the creation time. Cells returns an object's values, one for each column.
	Columns []metav1.TableColumnDefinition
	Cells   func(obj Object) []any
	// Schema describes the kind beside apiVersion, kind and metadata, for kubectl explain and for validation by clients: properties such as
	// spec and status, without references. Nil: an object with any fields.
	Schema *spec.Schema
}

// List is the result of [Resource.List].
type List struct {
	Items []Object
	// ResourceVersion is the version from which a watch continues; Continue is the token of the next page.
	ResourceVersion, Continue string
}

// Request is a request for a resource.
type Request struct {
	Namespace, Name string // Namespace is empty for cluster-scoped kinds and for all namespaces; Name for collections
	User            user.Info
	Verb            string // get, list, watch, create, update, patch, delete, deletecollection
	// Options are the query's options of lists and watches. Labels and Fields are its selectors.
	Options metav1.ListOptions
	Labels  labels.Selector
	Fields  fields.Selector
	// DryRun means that the function must store nothing.
	DryRun bool
	// HTTP is the request itself, without credentials.
	HTTP *http.Request
}

type requestKey struct{}

// From returns the [Request] for the HTTP request of a [Resource.Answer].
func From(r *http.Request) *Request {
	req, _ := r.Context().Value(requestKey{}).(*Request)
	return req
}

func (r *Resource) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: r.Group, Version: r.Version, Kind: r.Kind}
}

func (r *Resource) groupResource() schema.GroupResource {
	return schema.GroupResource{Group: r.Group, Resource: r.Name}
}

func (r *Resource) singular() string { return cmp.Or(r.Singular, strings.ToLower(r.Kind)) }

func (r *Resource) fresh() Object {
	if r.New != nil {
		return r.New()
	}
	return &unstructured.Unstructured{}
}

// verbs returns the verbs that the functions support.
func (r *Resource) verbs() []string {
	var v []string
	add := func(ok bool, names ...string) {
		if ok {
			v = append(v, names...)
		}
	}
	add(r.Create != nil, "create")
	add(r.Delete != nil, "delete")
	add(r.Delete != nil && r.List != nil, "deletecollection")
	add(r.Get != nil || r.List != nil || r.Answer != nil, "get")
	add(r.List != nil || r.Answer != nil, "list")
	add(r.Update != nil, "patch", "update")
	add(r.Watch != nil, "watch")
	return v
}

func (r *Resource) check() error {
	switch {
	case r.Group == "" || r.Version == "" || r.Name == "" || r.Kind == "":
		return errors.New("a resource needs Group, Version, Name and Kind")
	case r.List == nil && r.Get == nil && r.Answer == nil:
		return fmt.Errorf("resource %s: none of List, Get and Answer is set", r.groupResource())
	case r.Update != nil && r.List == nil && r.Get == nil:
		return fmt.Errorf("resource %s: Update without List or Get cannot be patched", r.groupResource())
	case (r.Columns == nil) != (r.Cells == nil):
		return fmt.Errorf("resource %s: Columns and Cells need each other", r.groupResource())
	}
	return nil
}

// columns are the columns of a resource, with the name before them.
type columns struct{ r *Resource }

// Definitions returns the columns.
func (c columns) Definitions() []metav1.TableColumnDefinition {
	return append([]metav1.TableColumnDefinition{{Name: "Name", Type: "string", Format: "name", Description: "Name of the object."}},
		c.r.Columns...)
}

// Cells returns an object's values.
func (c columns) Cells(obj resource.Object) ([]any, error) {
	cells := append([]any{obj.GetName()}, c.r.Cells(obj)...)
	if len(cells) != len(c.r.Columns)+1 {
		return nil, fmt.Errorf("%d cells for %d columns", len(cells)-1, len(c.r.Columns))
	}
	return cells, nil
}

func (r *Resource) columns() resource.Columns {
	if r.Columns == nil {
		return nil
	}
	return columns{r}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mortise-dev/mortise/resource"
)

// Options are the query parameters of a request for a table.
type Options struct {
	// Include selects the object in a row: none, the metadata, or the whole object. Empty is the metadata.
	Include metav1.IncludeObjectPolicy
	// NoHeaders omits the column definitions.
	NoHeaders bool
}

// ParseOptions reads includeObject from a query, and rejects invalid values.
func ParseOptions(q url.Values) (Options, error) {
	o := metav1.TableOptions{IncludeObject: metav1.IncludeObjectPolicy(q.Get("includeObject"))}
	switch errs := validation.ValidateTableOptions(&o); len(errs) {
	case 0:
		return Options{Include: o.IncludeObject}, nil
	case 1:
		return Options{}, errors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", errs[0].Error()))
	default:
		return Options{}, errors.NewBadRequest(fmt.Sprintf("Unable to convert to Table as requested: %v", errs))
	}
}

// Orderer is an optional interface of columns whose rows are not sorted by name.
type Orderer interface {
	// Order sorts hub objects, in place.
	Order(objs []resource.Object)
}

// Converter makes the tables of one request.
type Converter struct {
	// Columns are those of the requested version; nil: [Default].
	Columns resource.Columns
	// Target is the table's own group version, meta.k8s.io/v1 or v1beta1.
	Target Target
	Options
	// Object returns the object of a row in the client's version, for includeObject=Object.
	Object func(hub resource.Object) (runtime.RawExtension, error)
	// WithoutObjects leaves rows without an object, whatever Include says: the caller adds them.
	WithoutObjects bool
}

// IncludesMetadata reports whether a row has its object's metadata.
func (c *Converter) IncludesMetadata() bool {
	return c.Include == metav1.IncludeMetadata || c.Include == ""
}

// One returns the table of a single object.
func (c *Converter) One(hub resource.Object) (*metav1.Table, error) {
	t, err := c.List([]resource.Object{hub}, metav1.ListMeta{ResourceVersion: hub.GetResourceVersion()})
	return t, err
}

// Event returns the table of a watch event's object. Only the first table of a watch has column definitions.
func (c *Converter) Event(hub resource.Object) (*metav1.Table, error) {
	t, err := c.One(hub)
	c.NoHeaders = true
	return t, err
}

// List returns the table of a list.
func (c *Converter) List(hubs []resource.Object, list metav1.ListMeta) (*metav1.Table, error) {
	columns := c.Columns
	if columns == nil {
		columns = Default{}
	}
	if o, ok := columns.(Orderer); ok && len(hubs) > 1 {
		hubs = slices.Clone(hubs)
		o.Order(hubs)
	}
	t := &metav1.Table{
		TypeMeta: metav1.TypeMeta{APIVersion: c.Target.GroupVersion(), Kind: "Table"},
		ListMeta: list,
	}
	if len(hubs) > 0 || c.Columns != nil {
		t.Rows = make([]metav1.TableRow, len(hubs))
	}
	if !c.NoHeaders {
		t.ColumnDefinitions = columns.Definitions()
	}
	for i, hub := range hubs {
		var err error
		if whole, ok := columns.(resource.Rows); ok {
			t.Rows[i], err = whole.Row(hub)
		} else {
			t.Rows[i].Cells, err = columns.Cells(hub)
		}
		if err != nil {
			return nil, fmt.Errorf("make cells of %q: %w", hub.GetName(), err)
		}
		if t.Rows[i].Object, err = c.object(hub); err != nil {
			return nil, err
		}
	}
	return t, nil
}

func (c *Converter) object(hub resource.Object) (runtime.RawExtension, error) {
	switch {
	case c.WithoutObjects:
		return runtime.RawExtension{}, nil
	case c.Include == metav1.IncludeObject:
		return c.Object(hub)
	case c.IncludesMetadata(), hub.GetAnnotations()[metav1.InitialEventsAnnotationKey] == "true":
		return runtime.RawExtension{Object: Partial(c.Target, hub)}, nil
	default:
		return runtime.RawExtension{}, nil
	}
}

// Partial returns the metadata of an object, in the form of the target's version.
func Partial(t Target, hub metav1.Object) *metav1.PartialObjectMetadata {
	p := meta.AsPartialObjectMetadata(hub)
	if key := inPlaceOfField(hub); key != "" && p.Annotations[key] != "" {
		p.Annotations = maps.Clone(p.Annotations)
		delete(p.Annotations, key)
	}
	p.TypeMeta = metav1.TypeMeta{APIVersion: t.GroupVersion(), Kind: "PartialObjectMetadata"}
	return p
}

// HasPlainMetadata reports whether the metadata of an object's form is the object's own.
func HasPlainMetadata(hub metav1.Object) bool {
	key := inPlaceOfField(hub)
	return key == "" || hub.GetAnnotations()[key] == ""
}

// inPlaceOfField is the annotation in which a kind's served version stores data for which it has no field. It is not
// metadata, so metadata forms omit it; "" for most kinds.
func inPlaceOfField(hub metav1.Object) string {
	switch hub.(type) {
	case *appsv1.DaemonSet:
		return appsv1.DeprecatedTemplateGeneration
	case *appsv1.Deployment:
		return appsv1.DeprecatedRollbackTo
	}
	return ""
}

// PartialList returns the metadata of a list's objects. The items of an empty one are nil, as upstream's.
func PartialList(t Target, hubs []resource.Object, list metav1.ListMeta) *metav1.PartialObjectMetadataList {
	l := &metav1.PartialObjectMetadataList{
		TypeMeta: metav1.TypeMeta{APIVersion: t.GroupVersion(), Kind: "PartialObjectMetadataList"},
		ListMeta: list,
	}
	if len(hubs) > 0 {
		l.Items = make([]metav1.PartialObjectMetadata, len(hubs))
	}
	for i, hub := range hubs {
		l.Items[i] = *Partial(t, hub)
	}
	return l
}

// Default has the columns of kinds without columns of their own: the name and the time of creation.
type Default struct{}

// Definitions returns the two columns.
func (Default) Definitions() []metav1.TableColumnDefinition {
	docs := metav1.ObjectMeta{}.SwaggerDoc()
	return []metav1.TableColumnDefinition{
		{Name: "Name", Type: "string", Format: "name", Description: docs["name"]},
		{Name: "Created At", Type: "date", Description: docs["creationTimestamp"]},
	}
}

// Cells returns the name, and the time as RFC 3339.
func (Default) Cells(obj resource.Object) ([]any, error) {
	return []any{obj.GetName(), obj.GetCreationTimestamp().UTC().Format(time.RFC3339)}, nil
}

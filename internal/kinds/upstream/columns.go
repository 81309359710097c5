// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"fmt"
	"reflect"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/printers/internalversion"

	"github.com/mortise-dev/mortise/resource"
)

// Columns returns the columns of a kind, nil if upstream defines none. Cells takes objects of the given version.
func Columns(gvk schema.GroupVersionKind) resource.Columns {
	return &columns{gvk: gvk, entry: sync.OnceValues(func() (handler, error) {
		obj, err := scheme().New(schema.GroupVersionKind{Group: gvk.Group, Version: runtime.APIVersionInternal, Kind: gvk.Kind})
		if err != nil {
			return handler{}, fmt.Errorf("find columns of %s: %w", gvk.Kind, err)
		}
		t := reflect.TypeOf(obj)
		h, ok := handlers()[t]
		if !ok {
			return handler{}, fmt.Errorf("find columns of %s: no handler of %s", gvk.Kind, t)
		}
		return h, nil
	})}
}

// handler is one kind's column definitions and the function that converts its unversioned form to rows.
type handler struct {
	definitions []metav1.TableColumnDefinition
	rows        reflect.Value
	options     reflect.Value // requests the wide form
	internal    reflect.Type  // pointed to
}

// handlers are upstream's table handlers, by the unversioned type that they print.
var handlers = sync.OnceValue(func() map[reflect.Type]handler {
	c := collector{}
	internalversion.AddHandlers(c)
	return c
})

// collector receives the handlers.
type collector map[reflect.Type]handler

// TableHandler keeps one handler.
func (c collector) TableHandler(definitions []metav1.TableColumnDefinition, print any) error {
	f := reflect.ValueOf(print)
	t, options := f.Type().In(0), reflect.New(f.Type().In(1)).Elem()
	options.FieldByName("Wide").SetBool(true)
	options.FieldByName("NoHeaders").SetBool(true)
	c[t] = handler{definitions: definitions, rows: f, options: options, internal: t.Elem()}
	return nil
}

type columns struct {
	gvk   schema.GroupVersionKind
	entry func() (handler, error)
}

// Definitions returns the columns, including those of the wide form.
func (c *columns) Definitions() []metav1.TableColumnDefinition {
	h, err := c.entry()
	if err != nil {
		return nil
	}
	return h.definitions
}

// Cells returns one object's cells.
func (c *columns) Cells(obj resource.Object) ([]any, error) {
	row, err := c.Row(obj)
	return row.Cells, err
}

// Row returns one object's row, without the object.
func (c *columns) Row(obj resource.Object) (metav1.TableRow, error) {
	h, err := c.entry()
	if err != nil {
		return metav1.TableRow{}, err
	}
	in := reflect.New(h.internal)
	if err := scheme().Convert(obj, in.Interface(), nil); err != nil {
		return metav1.TableRow{}, fmt.Errorf("make row of %s: %w", c.gvk.Kind, err)
	}
	out := h.rows.Call([]reflect.Value{in, h.options})
	if err, _ := out[1].Interface().(error); err != nil {
		return metav1.TableRow{}, fmt.Errorf("make row of %s: %w", c.gvk.Kind, err)
	}
	rows, _ := out[0].Interface().([]metav1.TableRow)
	if len(rows) != 1 {
		return metav1.TableRow{}, fmt.Errorf("make row of %s: %d rows", c.gvk.Kind, len(rows))
	}
	rows[0].Object = runtime.RawExtension{}
	return rows[0], nil
}

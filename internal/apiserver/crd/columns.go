// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package crd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"

	v1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/util/jsonpath"

	"github.com/mortise-dev/mortise/internal/apiserver/table"
	"github.com/mortise-dev/mortise/resource"
)

// columns are a version's additionalPrinterColumns after the name.
type columns struct {
	definitions []metav1.TableColumnDefinition
	paths       []*jsonpath.JSONPath // of the definitions after the first
}

func newColumns(of []v1.CustomResourceColumnDefinition) (*columns, error) {
	docs := metav1.ObjectMeta{}.SwaggerDoc()
	if len(of) == 0 {
		of = []v1.CustomResourceColumnDefinition{
			{Name: "Age", Type: "date", Description: docs["creationTimestamp"], JSONPath: ".metadata.creationTimestamp"},
		}
	}
	c := &columns{definitions: []metav1.TableColumnDefinition{{Name: "Name", Type: "string", Format: "name", Description: docs["name"]}}}
	for _, col := range of {
		path := jsonpath.New(col.Name)
		if err := path.Parse("{" + col.JSONPath + "}"); err != nil {
			return nil, fmt.Errorf("parse column %q: %w", col.Name, err)
		}
		path.AllowMissingKeys(true)
		d := metav1.TableColumnDefinition{Name: col.Name, Type: col.Type, Format: col.Format, Description: col.Description,
			Priority: col.Priority}
		if d.Description == "" {
			d.Description = "Custom resource definition column (in JSONPath format): " + col.JSONPath
		}
		c.paths = append(c.paths, path)
		c.definitions = append(c.definitions, d)
	}
	return c, nil
}

// Definitions returns the columns.
func (c *columns) Definitions() []metav1.TableColumnDefinition { return c.definitions }

// Cells returns an object's values. A cell is nil if the object has no value of the column's type.
func (c *columns) Cells(obj resource.Object) ([]any, error) {
	content := obj.(*unstructured.Unstructured).Object
	cells := make([]any, 1, len(c.definitions))
	cells[0] = obj.GetName()
	for i, path := range c.paths {
		cells = append(cells, cell(path, c.definitions[i+1].Type, content))
	}
	return cells, nil
}

func cell(path *jsonpath.JSONPath, columnType string, content map[string]any) any {
	results, err := path.FindResults(content)
	if err != nil || len(results) == 0 || len(results[0]) == 0 {
		return nil
	}
	value := results[0][0].Interface()
	if columnType == "string" {
		var buf bytes.Buffer
		if err := path.PrintResults(&buf, []reflect.Value{reflect.ValueOf(value)}); err != nil {
			return nil
		}
		return buf.String()
	}
	switch columnType {
	case "integer":
		switch n := value.(type) {
		case int64:
			return n
		case float64:
			return int64(n)
		case json.Number:
			if i, err := n.Int64(); err == nil {
				return i
			}
		}
	case "number":
		switch n := value.(type) {
		case int64:
			return float64(n)
		case float64:
			return n
		case json.Number:
			if f, err := n.Float64(); err == nil {
				return f
			}
		}
	case "boolean":
		if b, ok := value.(bool); ok {
			return b
		}
	case "date":
		if s, ok := value.(string); ok {
			var t metav1.Time
			if err := t.UnmarshalQueryParameter(s); err != nil {
				return "<invalid>"
			}
			return table.Age(t)
		}
	}
	return nil
}

// selectable is a field that a field selector may use.
type selectable struct {
	name string
	path *jsonpath.JSONPath
}

func newSelectable(path string) (selectable, error) {
	s := selectable{name: strings.TrimPrefix(path, "."), path: jsonpath.New("selectableField")}
	s.path.AllowMissingKeys(true)
	if err := s.path.Parse("{" + path + "}"); err != nil {
		return s, fmt.Errorf("parse selectable field %q: %w", path, err)
	}
	return s, nil
}

// value returns the field as text; empty if the object does not have it.
func (s selectable) value(content map[string]any) string {
	results, err := s.path.FindResults(content)
	if err != nil || len(results) != 1 || len(results[0]) != 1 {
		return ""
	}
	if v := results[0][0].Interface(); v != nil {
		return fmt.Sprint(v)
	}
	return ""
}

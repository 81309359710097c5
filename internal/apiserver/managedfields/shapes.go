// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package managedfields

import (
	"bytes"
	"compress/gzip"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	apischema "k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/kube-openapi/pkg/util"
	"sigs.k8s.io/structured-merge-diff/v6/schema"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

//go:generate go run ./gen

// client-go has the schemas of the built-in kinds as YAML, which takes 100 ms to parse. These are the same as
// compressed JSON, which takes a tenth of that.
//
//go:embed z_shapes.json.gz
var shapes []byte

// shape mirrors [schema.TypeDef], whose embedded fields have no JSON form.
type shape struct {
	Name string `json:"n"`
	Atom atom   `json:"a"`
}

type atom struct {
	Scalar *schema.Scalar `json:"s,omitempty"`
	List   *list          `json:"l,omitempty"`
	Map    *object        `json:"m,omitempty"`
}

type list struct {
	Element      ref                        `json:"e"`
	Relationship schema.ElementRelationship `json:"r,omitempty"`
	Keys         []string                   `json:"k,omitempty"`
}

type object struct {
	Fields       []member                   `json:"f,omitempty"`
	Unions       []schema.Union             `json:"u,omitempty"`
	Element      ref                        `json:"e"`
	Relationship schema.ElementRelationship `json:"r,omitempty"`
}

type member struct {
	Name    string `json:"n"`
	Type    ref    `json:"t"`
	Default any    `json:"d,omitempty"`
}

type ref struct {
	Named        *string                     `json:"n,omitempty"`
	Inlined      atom                        `json:"i,omitzero"`
	Relationship *schema.ElementRelationship `json:"r,omitempty"`
	Nullable     bool                        `json:"z,omitempty"`
}

// definitionShapes are the same of CustomResourceDefinition, of the apiextensions-apiserver module.
//
//go:embed z_definitions.json.gz
var definitionShapes []byte

// builtInTypes returns the types of the kinds that client-go knows.
func builtInTypes() (managedfields.TypeConverter, error) {
	s, err := newShaped(scheme.Scheme, shapes)
	if err != nil {
		return nil, err
	}
	return trusting{s}, nil
}

// shaped converts objects of the kinds of a scheme. It is [managedfields.NewSchemeTypeConverter] with names.
type shaped struct {
	parser *typed.Parser
	names  *names
}

func newShaped(s *runtime.Scheme, shapes []byte) (shaped, error) {
	types, err := readShapes(shapes)
	if err != nil {
		return shaped{}, err
	}
	p := &typed.Parser{}
	p.Schema.Types = types
	return shaped{parser: p, names: &names{scheme: s}}, nil
}

// ObjectToTyped returns the object with its schema.
func (s shaped) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	of, err := s.shape(obj.GetObjectKind().GroupVersionKind())
	if err != nil {
		return nil, err
	}
	if u, ok := obj.(*unstructured.Unstructured); ok {
		return of.FromUnstructured(u.UnstructuredContent(), opts...)
	}
	return of.FromStructured(obj, opts...)
}

// TypedToObject returns the value as an unstructured object.
func (s shaped) TypedToObject(v *typed.TypedValue) (runtime.Object, error) {
	u := v.AsValue().Unstructured()
	fields, ok := u.(map[string]any)
	if !ok {
		return nil, fmt.Errorf("convert value to object: it is a %T", u)
	}
	return &unstructured.Unstructured{Object: fields}, nil
}

// shape returns the schema of a kind.
func (s shaped) shape(gvk apischema.GroupVersionKind) (typed.ParseableType, error) {
	name, err := s.names.of(gvk)
	if err != nil {
		return typed.ParseableType{}, fmt.Errorf("find shape: %w", err)
	}
	return s.parser.Type(name), nil
}

// trusting skips the validation of Go objects against their schema before they are compared or merged. The comparison
// or merge checks the object anyway; a separate validation is half of the cost of an update's managed fields.
type trusting struct{ shaped }

// ObjectToTyped does not validate the object if duplicates are allowed. Callers allow them for objects that are or will
// be stored. The only other error of a Go object, a missing key, is found by the comparison.
func (t trusting) ObjectToTyped(obj runtime.Object, opts ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if _, ok := obj.(runtime.Unstructured); ok || !slices.Contains(opts, typed.AllowDuplicates) {
		return t.shaped.ObjectToTyped(obj, opts...)
	}
	of, err := t.shape(obj.GetObjectKind().GroupVersionKind())
	if err != nil {
		return nil, err
	}
	v, err := value.NewValueReflect(obj)
	if err != nil {
		return nil, fmt.Errorf("read object: %w", err)
	}
	return typed.AsTypedUnvalidated(v, of.Schema, of.TypeRef), nil
}

// names are the names of the models of kinds, as [runtime.Scheme.ToOpenAPIDefinitionName] returns them, of those that were asked for. That
// function asks each type for its name, which the types of Kubernetes' kinds answer with what follows from the names of the type and its
// package anyway: the program would have 2,600 functions for it.
type names struct {
	scheme *runtime.Scheme
	known  sync.Map // from GroupVersionKind to string
}

func (n *names) of(gvk apischema.GroupVersionKind) (string, error) {
	if name, ok := n.known.Load(gvk); ok {
		return name.(string), nil
	}
	if gvk.Version == "" {
		return "", fmt.Errorf("kind %q has no version", gvk.Kind)
	}
	example, err := n.scheme.New(gvk)
	if err != nil {
		return "", err //nolint:wrapcheck // the caller does
	}
	of := reflect.TypeOf(example).Elem()
	name := util.ToRESTFriendlyName(of.PkgPath() + "." + of.Name())
	n.known.Store(gvk, name)
	return name, nil
}

func readShapes(z []byte) ([]schema.TypeDef, error) {
	r, err := gzip.NewReader(bytes.NewReader(z))
	if err != nil {
		return nil, fmt.Errorf("decompress shapes: %w", err)
	}
	var all []shape
	if err := json.NewDecoder(r).Decode(&all); err != nil {
		return nil, fmt.Errorf("parse shapes: %w", err)
	}
	types := make([]schema.TypeDef, len(all))
	for i, t := range all {
		types[i] = schema.TypeDef{Name: t.Name, Atom: t.Atom.schema()}
	}
	return types, nil
}

func (a atom) schema() schema.Atom {
	out := schema.Atom{Scalar: a.Scalar}
	if l := a.List; l != nil {
		out.List = &schema.List{ElementType: l.Element.schema(), ElementRelationship: l.Relationship, Keys: l.Keys}
	}
	if m := a.Map; m != nil {
		out.Map = &schema.Map{Unions: m.Unions, ElementType: m.Element.schema(), ElementRelationship: m.Relationship}
		for _, f := range m.Fields {
			out.Map.Fields = append(out.Map.Fields, schema.StructField{Name: f.Name, Type: f.Type.schema(), Default: asYAML(f.Default)})
		}
	}
	return out
}

func (r ref) schema() schema.TypeRef {
	return schema.TypeRef{NamedType: r.Named, Inlined: r.Inlined.schema(), ElementRelationship: r.Relationship, Nullable: r.Nullable}
}

// asYAML converts a default to the Go types of YAML's decoder, which the merge expects.
func asYAML(v any) any {
	switch v := v.(type) {
	case float64:
		if v == math.Trunc(v) {
			return int(v)
		}
	case map[string]any:
		out := make(map[any]any, len(v))
		for k, x := range v {
			out[k] = asYAML(x)
		}
		return out
	case []any:
		for i := range v {
			v[i] = asYAML(v[i])
		}
	}
	return v
}

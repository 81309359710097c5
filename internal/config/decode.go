// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
)

// File is a configuration and the name of the file that it came from.
type File struct {
	Name   string
	Config *v1alpha1.ServerConfiguration
}

const apiVersion = v1alpha1.Group + "/" + v1alpha1.Version

// maxFileBytes is the largest file that is read.
const maxFileBytes = 1 << 20

// Read reads and checks the file of that name, for a server that has these flags.
func Read(name string, flags *pflag.FlagSet) (*File, error) {
	opened, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	defer opened.Close()
	data, err := io.ReadAll(io.LimitReader(opened, maxFileBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read configuration: %w", err)
	}
	if len(data) > maxFileBytes {
		return nil, fmt.Errorf("read configuration %s: the file has more than %d bytes", name, maxFileBytes)
	}
	c, err := Parse(data, flags)
	if err != nil {
		return nil, fmt.Errorf("read configuration %s: %w", name, err)
	}
	return &File{Name: name, Config: c}, nil
}

// Parse decodes a configuration, as YAML or JSON, for a server that has these flags. Its error names every field that is unknown, duplicate
// or invalid, with its line.
func Parse(data []byte, flags *pflag.FlagSet) (*v1alpha1.ServerConfiguration, error) {
	documents := yaml.NewDecoder(bytes.NewReader(data))
	var document yaml.Node
	if err := documents.Decode(&document); errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("the file is empty: want a %s of %s", v1alpha1.ServerConfigurationKind, apiVersion)
	} else if err != nil {
		return nil, err
	}
	var another yaml.Node
	if err := documents.Decode(&another); err == nil {
		return nil, fmt.Errorf("the file has more than one document: want one %s", v1alpha1.ServerConfigurationKind)
	} else if !errors.Is(err, io.EOF) {
		return nil, err
	}
	d := &decoder{lines: map[string]int{}}
	var c v1alpha1.ServerConfiguration
	root := &document
	if root.Kind == yaml.DocumentNode && len(root.Content) == 1 {
		root = root.Content[0]
	}
	if version, kind := scalar(root, "apiVersion"), scalar(root, "kind"); version != apiVersion || kind != v1alpha1.ServerConfigurationKind {
		return nil, fmt.Errorf("apiVersion %q and kind %q: want %s and %s", version, kind, apiVersion, v1alpha1.ServerConfigurationKind)
	}
	d.decode(root, reflect.ValueOf(&c).Elem(), "")
	d.check(&c, Settings(flags))
	if len(d.errs) > 0 {
		return nil, oneLine(d.errs)
	}
	return &c, nil
}

// oneLine joins errors with semicolons, for a command prints one line.
func oneLine(errs []error) error {
	texts := make([]string, len(errs))
	for i, err := range errs {
		texts[i] = err.Error()
	}
	return errors.New(strings.Join(texts, "; "))
}

// scalar is the value of a top-level field, before anything is known of the document.
func scalar(n *yaml.Node, name string) string {
	if n.Kind == yaml.MappingNode {
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i].Value == name {
				return n.Content[i+1].Value
			}
		}
	}
	return ""
}

// decoder collects what is wrong with a document, and the lines of its texts and numbers by their paths.
type decoder struct {
	errs  []error
	lines map[string]int
}

func (d *decoder) wrong(n *yaml.Node, path, format string, args ...any) {
	if path == "" {
		path = "the document"
	}
	d.errs = append(d.errs, fmt.Errorf("line %d: %s: %s", n.Line, path, fmt.Sprintf(format, args...)))
}

// decode reads a node into a field of the configuration.
func (d *decoder) decode(n *yaml.Node, to reflect.Value, path string) {
	if n.Kind == yaml.AliasNode {
		d.wrong(n, path, "aliases are not allowed")
		return
	}
	if n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" {
		return // as if the field were absent
	}
	switch {
	case to.Type() == reflect.TypeFor[metav1.Duration]():
		d.duration(n, to, path)
	case to.Kind() == reflect.Pointer:
		value := reflect.New(to.Type().Elem())
		before := len(d.errs)
		d.decode(n, value.Elem(), path)
		if len(d.errs) == before {
			to.Set(value)
		}
	case to.Kind() == reflect.Struct:
		d.fields(n, path, func(name string, key, value *yaml.Node) {
			below := join(path, name)
			if field, ok := fieldNamed(to, name); ok {
				d.decode(value, field, below)
				return
			}
			d.wrong(key, below, "unknown field, want one of %s", strings.Join(fieldNames(to.Type()), ", "))
		})
	case to.Kind() == reflect.Map:
		values := reflect.MakeMap(to.Type())
		d.fields(n, path, func(name string, _, value *yaml.Node) {
			if strings.Contains(name, "=") {
				d.wrong(value, path, "%q: want a key without =", name)
			}
			item := reflect.New(to.Type().Elem()).Elem()
			d.decode(value, item, path+"["+name+"]")
			values.SetMapIndex(reflect.ValueOf(name), item)
		})
		to.Set(values)
	case to.Kind() == reflect.Slice:
		if n.Kind != yaml.SequenceNode {
			d.wrong(n, path, "want a list")
			return
		}
		values := reflect.MakeSlice(to.Type(), len(n.Content), len(n.Content))
		for i, item := range n.Content {
			d.decode(item, values.Index(i), fmt.Sprintf("%s[%d]", path, i))
		}
		to.Set(values)
	default:
		d.plain(n, to, path)
	}
}

// fields calls do for each field of a mapping, once for each name.
func (d *decoder) fields(n *yaml.Node, path string, do func(name string, key, value *yaml.Node)) {
	if n.Kind != yaml.MappingNode {
		d.wrong(n, path, "want fields, NAME: VALUE")
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			d.wrong(key, path, "want a name before the colon")
			continue
		}
		if line, ok := seen[key.Value]; ok {
			d.wrong(key, join(path, key.Value), "duplicate field, it is on line %d too", line)
			continue
		}
		seen[key.Value] = key.Line
		do(key.Value, key, value)
	}
}

func (d *decoder) duration(n *yaml.Node, to reflect.Value, path string) {
	value, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		d.wrong(n, path, "%s: want a duration such as 90s, 5m or 1h30m", shown(n))
		return
	}
	to.Set(reflect.ValueOf(metav1.Duration{Duration: value}))
}

// plain reads a text, a number or a boolean; each has to be written as such.
func (d *decoder) plain(n *yaml.Node, to reflect.Value, path string) {
	want, tags := "text", []string{"!!str", "!!timestamp", "!!merge"}
	switch to.Kind() {
	case reflect.Bool:
		want, tags = "true or false", []string{"!!bool"}
	case reflect.Int32, reflect.Int64:
		want, tags = "a whole number", []string{"!!int"}
	case reflect.Float32, reflect.Float64:
		want, tags = "a number", []string{"!!int", "!!float"}
	}
	if n.Kind != yaml.ScalarNode || !slices.Contains(tags, n.ShortTag()) {
		d.wrong(n, path, "%s: want %s", shown(n), want)
		return
	}
	d.lines[path] = n.Line
	if to.Kind() == reflect.String {
		to.SetString(n.Value)
		return
	}
	err := n.Decode(to.Addr().Interface())
	if err != nil || to.CanFloat() && (math.IsNaN(to.Float()) || math.IsInf(to.Float(), 0)) {
		d.wrong(n, path, "%s: want %s of %d bits", shown(n), want, to.Type().Bits())
	}
}

// shown is what an error quotes of a node.
func shown(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "fields"
	case yaml.SequenceNode:
		return "a list"
	}
	const most = 64
	if len(n.Value) > most {
		return fmt.Sprintf("%q…", n.Value[:most])
	}
	return fmt.Sprintf("%q", n.Value)
}

// check refuses values that the table does not allow.
func (d *decoder) check(c *v1alpha1.ServerConfiguration, settings []Setting) {
	keys := map[string][]string{} // of maps whose keys the table knows, by the map's path
	for _, s := range settings {
		names, key := s.path()
		if key != "" {
			at := strings.Join(names, ".")
			keys[at] = append(keys[at], key)
		}
		texts, ok := s.texts(c)
		for _, text := range texts {
			if ok && len(s.Values) > 0 && !slices.Contains(s.Values, text) {
				d.errs = append(d.errs, fmt.Errorf("line %d: %s: %q: want one of %s", d.lines[s.Field], s.Field, text, strings.Join(s.Values, ", ")))
			}
		}
	}
	for _, at := range slices.Sorted(maps.Keys(keys)) {
		field, _ := find(reflect.ValueOf(c).Elem(), strings.Split(at, "."))
		for _, key := range field.MapKeys() {
			if !slices.Contains(keys[at], key.String()) {
				slices.Sort(keys[at])
				line := d.lines[at+"["+key.String()+"]"]
				d.errs = append(d.errs, fmt.Errorf("line %d: %s: unknown key %q, want one of %s", line, at, key, strings.Join(keys[at], ", ")))
			}
		}
	}
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// fieldNamed finds a struct's field by its name in JSON, in the structs that are inlined too.
func fieldNamed(in reflect.Value, name string) (reflect.Value, bool) {
	for i := range in.NumField() {
		f := in.Type().Field(i)
		if f.Anonymous {
			if found, ok := fieldNamed(in.Field(i), name); ok {
				return found, true
			}
		} else if jsonName(f) == name {
			return in.Field(i), true
		}
	}
	return reflect.Value{}, false
}

// fieldNames are the names of a struct's fields in JSON, sorted.
func fieldNames(t reflect.Type) (names []string) {
	for i := range t.NumField() {
		if f := t.Field(i); f.Anonymous {
			names = append(names, fieldNames(f.Type)...)
		} else {
			names = append(names, jsonName(f))
		}
	}
	slices.Sort(names)
	return names
}

func jsonName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	return name
}

// find is the field at a path.
func find(in reflect.Value, names []string) (reflect.Value, bool) {
	for _, name := range names {
		field, ok := reflect.Value{}, false
		if in.Kind() == reflect.Struct {
			field, ok = fieldNamed(in, name)
		}
		if !ok {
			return reflect.Value{}, false
		}
		in = field
	}
	return in, true
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/api/config/v1alpha1"
)

// Applied tells which flags got their values from a file.
type Applied struct {
	file  string
	flags map[string]string // the field, by the flag's name
}

// Apply sets the flags that the command line did not set, by the file. A value that is the flag's default sets nothing.
func (f *File) Apply(flags *pflag.FlagSet) (*Applied, error) {
	applied := &Applied{file: f.Name, flags: map[string]string{}}
	given := map[pflag.Value]bool{} // also by a deprecated name
	flags.Visit(func(flag *pflag.Flag) { given[flag.Value] = true })
	for _, s := range Settings(flags) {
		flag := flags.Lookup(s.Flag)
		texts, ok := s.texts(f.Config)
		if !ok || flag == nil || given[flag.Value] {
			continue
		}
		if !s.Optional && slices.Equal(texts, values(flag)) {
			continue
		}
		if err := set(flags, flag, texts); err != nil {
			return nil, fmt.Errorf("read configuration %s: %s: %w", f.Name, s.Field, err)
		}
		applied.flags[s.Flag] = s.Field
	}
	return applied, nil
}

// Explain adds to an error that names flags which fields of the file set those.
func (a *Applied) Explain(err error) error {
	if a == nil || err == nil {
		return err
	}
	words := strings.FieldsFunc(err.Error(), func(r rune) bool {
		return r != '-' && (r < 'a' || r > 'z') && (r < '0' || r > '9')
	})
	var notes []string
	for _, flag := range slices.Sorted(maps.Keys(a.flags)) {
		if slices.Contains(words, "--"+flag) {
			notes = append(notes, fmt.Sprintf("--%s is %s", flag, a.flags[flag]))
		}
	}
	if len(notes) == 0 {
		return err
	}
	return fmt.Errorf("%w (in %s, %s)", err, a.file, strings.Join(notes, ", "))
}

// set gives a flag the texts of a field.
func set(flags *pflag.FlagSet, flag *pflag.Flag, texts []string) error {
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		if err := list.Replace(texts); err != nil {
			return err
		}
		flag.Changed = true
		return nil
	}
	return flags.Set(flag.Name, strings.Join(texts, ","))
}

// values are the texts of a flag: the items of a list, or one.
func values(flag *pflag.Flag) []string {
	if list, ok := flag.Value.(pflag.SliceValue); ok {
		return list.GetSlice()
	}
	return []string{flag.Value.String()}
}

// texts are what a configuration says of a setting, in the flag's form; false: it says nothing.
func (s Setting) texts(c *v1alpha1.ServerConfiguration) ([]string, bool) {
	names, key := s.path()
	field, ok := find(reflect.ValueOf(c).Elem(), names)
	if !ok {
		return nil, false
	}
	if key != "" {
		if field = field.MapIndex(reflect.ValueOf(key)); !field.IsValid() {
			return nil, false
		}
		return []string{text(field)}, true
	}
	switch field.Kind() {
	case reflect.Slice:
		list := field.Interface().([]string)
		if s.joined() {
			return []string{strings.Join(list, ",")}, len(list) > 0
		}
		return list, len(list) > 0
	case reflect.Map:
		var pairs []string
		for entry := range field.Seq2() {
			pairs = append(pairs, entry.String()+"="+text(field.MapIndex(entry)))
		}
		slices.Sort(pairs)
		return pairs, len(pairs) > 0
	case reflect.Pointer:
		if field.IsNil() {
			return nil, false
		}
		return []string{text(field.Elem())}, true
	}
	return []string{field.String()}, field.String() != ""
}

// joined tells that the flag is one text where the field is a list.
func (s Setting) joined() bool { return s.Flag == "controllers" }

// text is a plain value in a flag's form.
func text(v reflect.Value) string {
	switch value := v.Interface().(type) {
	case metav1.Duration:
		return value.Duration.String()
	case float32:
		return strconv.FormatFloat(float64(value), 'g', -1, 32)
	case float64:
		return strconv.FormatFloat(value, 'g', -1, 64)
	}
	return fmt.Sprint(v.Interface())
}

// Effective is the configuration that flags hold: their defaults, and what the file and the command line have set.
func Effective(flags *pflag.FlagSet) (*v1alpha1.ServerConfiguration, error) {
	c := &v1alpha1.ServerConfiguration{}
	for _, s := range Settings(flags) {
		flag := flags.Lookup(s.Flag)
		if flag == nil || s.Optional && !flag.Changed {
			continue
		}
		texts := values(flag)
		if s.joined() {
			texts = strings.Split(texts[0], ",")
		}
		names, key := s.path()
		field, ok := find(reflect.ValueOf(c).Elem(), names)
		if !ok {
			return nil, fmt.Errorf("--%s: there is no field %s", s.Flag, s.Field)
		}
		if err := fill(field, key, texts); err != nil {
			return nil, fmt.Errorf("--%s: %w", s.Flag, err)
		}
	}
	return c, nil
}

// fill sets a field, or the entry of that key, by a flag's texts.
func fill(field reflect.Value, key string, texts []string) error {
	switch {
	case field.Kind() == reflect.Map:
		if key != "" {
			texts = []string{key + "=" + texts[0]}
		}
		if field.IsNil() && len(texts) > 0 {
			field.Set(reflect.MakeMap(field.Type()))
		}
		for _, pair := range texts {
			name, text, _ := strings.Cut(pair, "=")
			value := reflect.New(field.Type().Elem()).Elem()
			if err := parse(value, strings.TrimSpace(text)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			field.SetMapIndex(reflect.ValueOf(strings.TrimSpace(name)), value)
		}
	case field.Kind() == reflect.Slice:
		if len(texts) > 0 {
			field.Set(reflect.ValueOf(slices.Clone(texts)))
		}
	case field.Kind() == reflect.Pointer:
		value := reflect.New(field.Type().Elem())
		if err := parse(value.Elem(), texts[0]); err != nil {
			return err
		}
		field.Set(value)
	default:
		field.SetString(texts[0])
	}
	return nil
}

// parse reads a flag's text into a plain value.
func parse(to reflect.Value, text string) error {
	switch to.Kind() {
	case reflect.String:
		to.SetString(text)
	case reflect.Bool:
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("%q: want true or false", text)
		}
		to.SetBool(b)
	case reflect.Int32, reflect.Int64:
		n, err := strconv.ParseInt(text, 0, to.Type().Bits())
		if err != nil {
			return err
		}
		to.SetInt(n)
	case reflect.Float32, reflect.Float64:
		x, err := strconv.ParseFloat(text, to.Type().Bits())
		if err != nil {
			return err
		}
		to.SetFloat(x)
	default:
		d, err := time.ParseDuration(text)
		if err != nil {
			return err
		}
		to.Set(reflect.ValueOf(metav1.Duration{Duration: d}))
	}
	return nil
}

// numbers puts Go's numbers in place of those of package json, whole ones as such.
func numbers(fields map[string]any) {
	for name, value := range fields {
		switch value := value.(type) {
		case map[string]any:
			numbers(value)
		case json.Number:
			if n, err := value.Int64(); err == nil {
				fields[name] = n
			} else if x, err := value.Float64(); err == nil {
				fields[name] = x
			}
		}
	}
}

// Marshal writes a configuration as YAML that [Parse] reads, the fields in alphabetical order.
func Marshal(c *v1alpha1.ServerConfiguration) ([]byte, error) {
	plain := *c
	plain.TypeMeta = metav1.TypeMeta{}
	fields, err := json.Marshal(&plain)
	if err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	decoder := json.NewDecoder(bytes.NewReader(fields))
	decoder.UseNumber()
	var body map[string]any
	if err := decoder.Decode(&body); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	numbers(body)
	var out bytes.Buffer
	fmt.Fprintf(&out, "apiVersion: %s\nkind: %s\n", apiVersion, v1alpha1.ServerConfigurationKind)
	if len(body) == 0 {
		return out.Bytes(), nil
	}
	encoder := yaml.NewEncoder(&out)
	encoder.SetIndent(2)
	if err := encoder.Encode(body); err != nil {
		return nil, fmt.Errorf("write configuration: %w", err)
	}
	return out.Bytes(), nil
}

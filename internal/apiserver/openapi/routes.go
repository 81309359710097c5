// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"reflect"
	"slices"
	"strings"
	"unicode"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/crd"
	"github.com/mortise-dev/mortise/resource"
)

// route is one operation of a custom kind.
type route struct {
	method  string // get, put …
	action  string // x-kubernetes-action
	verb    string // used in the operation's id and description
	suffix  string // of the operation's id, after the kind
	body    string // model; empty: none
	patch   bool
	answer  string // model
	codes   []string
	options options
}

// options is an options type of metav1, whose fields are query parameters. It has the texts of the fields, and no interface that returns
// them: the linker would keep those of every type of every kind for its sake.
type options struct {
	of   reflect.Type
	docs map[string]string
}

var (
	optionsOfList   = options{reflect.TypeFor[metav1.ListOptions](), metav1.ListOptions{}.SwaggerDoc()}
	optionsOfCreate = options{reflect.TypeFor[metav1.CreateOptions](), metav1.CreateOptions{}.SwaggerDoc()}
	optionsOfGet    = options{reflect.TypeFor[metav1.GetOptions](), metav1.GetOptions{}.SwaggerDoc()}
	optionsOfUpdate = options{reflect.TypeFor[metav1.UpdateOptions](), metav1.UpdateOptions{}.SwaggerDoc()}
	optionsOfPatch  = options{reflect.TypeFor[metav1.PatchOptions](), metav1.PatchOptions{}.SwaggerDoc()}
	optionsOfDelete = options{reflect.TypeFor[metav1.DeleteOptions](), metav1.DeleteOptions{}.SwaggerDoc()}
)

// routes adds the paths of a kind in a version.
func routes(d *resource.Descriptor, version string, paths map[string]any) {
	object, list := crd.ModelName(d.Group, version, d.Kind), crd.ModelName(d.Group, version, d.ListKind)
	root := "/apis/" + d.Group + "/" + version + "/"
	b := &routeBuilder{d: d, version: version, paths: paths}
	all := route{method: "get", action: "list", verb: "list", answer: list, options: optionsOfList}
	if d.Namespaced {
		everywhere := all
		everywhere.suffix = "ForAllNamespaces"
		b.add(root+d.Resource, "", false, everywhere)
		root += "namespaces/{namespace}/"
	}
	root += d.Resource
	b.add(root, "", d.Namespaced, all,
		route{method: "post", action: "post", verb: "create", body: object, answer: object, codes: []string{"201", "202"},
			options: optionsOfCreate},
		route{method: "delete", action: "deletecollection", verb: "deletecollection", answer: metaModel + "Status",
			options: optionsOfList},
	)
	one := func(model string) []route {
		return []route{
			{method: "get", action: "get", verb: "read", answer: model, options: optionsOfGet},
			{method: "put", action: "put", verb: "replace", body: model, answer: model, codes: []string{"201"}, options: optionsOfUpdate},
			{method: "patch", action: "patch", verb: "patch", body: metaModel + "Patch", patch: true, answer: model, options: optionsOfPatch},
		}
	}
	b.add(root+"/{name}", "", d.Namespaced, append(one(object),
		route{method: "delete", action: "delete", verb: "delete", body: metaModel + "DeleteOptions", answer: metaModel + "Status",
			codes: []string{"202"}, options: optionsOfDelete})...)
	for _, sub := range d.Subresources {
		if sub.Versions != nil && !slices.Contains(sub.Versions, version) {
			continue
		}
		model := object
		if sub.Name == "scale" {
			model = scaleModel
		}
		b.add(root+"/{name}/"+sub.Name, sub.Name, d.Namespaced, one(model)...)
	}
}

type routeBuilder struct {
	d       *resource.Descriptor
	version string
	paths   map[string]any
}

// add adds one path. Parameters that all its operations share become parameters of the path.
func (b *routeBuilder) add(path, sub string, namespaced bool, rs ...route) {
	item := map[string]any{}
	var common []map[string]any
	if strings.Contains(path, "{name}") {
		common = append(common, parameter("name", "path", "name of the "+b.d.Kind, "string"))
	}
	if namespaced {
		common = append(common, parameter("namespace", "path", "object name and auth scope, such as for teams and projects", "string"))
	}
	common = append(common, parameter("pretty", "query",
		"If 'true', then the output is pretty printed. Defaults to 'false' unless the user-agent indicates a browser or command-line HTTP tool (curl and wget).", "string"))
	for _, r := range rs {
		op := b.operation(r, sub, namespaced)
		query := parameters(r.options)
		if len(rs) == 1 {
			common = append(common, query...)
		} else if len(query) > 0 {
			op["parameters"] = query
		}
		item[r.method] = op
	}
	slices.SortStableFunc(common, func(a, b map[string]any) int { return strings.Compare(a["name"].(string), b["name"].(string)) })
	item["parameters"] = common
	b.paths[path] = item
}

func (b *routeBuilder) operation(r route, sub string, namespaced bool) map[string]any {
	scope := ""
	if namespaced {
		scope = "Namespaced"
	}
	verb, rest := r.verb, ""
	if verb == "deletecollection" {
		verb, rest = "delete", "Collection"
	}
	group := words(strings.TrimSuffix(b.d.Group, ".k8s.io"))
	op := map[string]any{
		"description":                     describe(r.verb, sub, b.d.Kind),
		"operationId":                     verb + group + words(b.version) + rest + scope + b.d.Kind + r.suffix + words(sub),
		"tags":                            []string{lowerFirst(group) + "_" + b.version},
		"x-kubernetes-action":             r.action,
		"x-kubernetes-group-version-kind": map[string]any{"group": b.d.Group, "version": b.version, "kind": b.d.Kind},
	}
	responses := map[string]any{"401": map[string]any{"description": "Unauthorized"}}
	for _, code := range append([]string{"200"}, r.codes...) {
		responses[code] = map[string]any{"description": map[string]string{"200": "OK", "201": "Created", "202": "Accepted"}[code],
			"content": content(r.answer, "application/json", "application/yaml")}
	}
	op["responses"] = responses
	switch {
	case r.patch:
		op["requestBody"] = map[string]any{"required": true,
			"content": content(r.body, "application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml")}
	case r.body != "":
		body := map[string]any{"content": content(r.body, "application/json", "application/yaml")}
		if r.verb != "delete" {
			body["required"] = true
		}
		op["requestBody"] = body
	}
	return op
}

func content(model string, types ...string) map[string]any {
	out := map[string]any{}
	for _, t := range types {
		out[t] = map[string]any{"schema": map[string]any{"$ref": schemaRef + model}}
	}
	return out
}

// describe returns an operation's description.
func describe(verb, sub, kind string) string {
	of := ""
	if sub != "" {
		of = " " + sub + " of"
	}
	switch verb {
	case "deletecollection":
		return "delete collection of " + kind
	case "list":
		return "list" + of + " objects of kind " + kind
	case "read", "replace":
		return verb + of + " the specified " + kind
	case "patch":
		return "partially update" + of + " the specified " + kind
	}
	article := " a "
	switch {
	case strings.HasSuffix(kind, "s") && !strings.HasSuffix(kind, "ss"):
		article = " "
	case strings.ContainsRune("aeiouAEIOU", rune(kind[0])):
		article = " an "
	}
	return verb + of + article + kind
}

// words joins the words of a name in camel case: dlg.example.com becomes DlgExampleCom.
func words(name string) string {
	var b strings.Builder
	for _, w := range strings.FieldsFunc(name, func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) }) {
		b.WriteString(strings.ToUpper(w[:1]) + w[1:])
	}
	return b.String()
}

func lowerFirst(s string) string {
	if s == "" {
		return s
	}
	return strings.ToLower(s[:1]) + s[1:]
}

func parameter(name, in, description, kind string) map[string]any {
	p := map[string]any{"name": name, "in": in, "description": description, "schema": map[string]any{"type": kind, "uniqueItems": true}}
	if in == "path" {
		p["required"] = true
	}
	return p
}

// parameters returns the fields of an options type that can be query parameters.
func parameters(o options) []map[string]any {
	var out []map[string]any
	for i := range o.of.NumField() {
		f := o.of.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		kind := f.Type
		if kind.Kind() == reflect.Pointer || kind.Kind() == reflect.Slice {
			kind = kind.Elem()
		}
		if name == "" || name == "-" || kind.Kind() == reflect.Struct {
			continue
		}
		is := "string"
		switch kind.Kind() {
		case reflect.Bool:
			is = "boolean"
		case reflect.Int, reflect.Int32, reflect.Int64:
			is = "integer"
		}
		out = append(out, parameter(name, "query", o.docs[name], is))
	}
	slices.SortFunc(out, func(a, b map[string]any) int { return strings.Compare(a["name"].(string), b["name"].(string)) })
	return out
}

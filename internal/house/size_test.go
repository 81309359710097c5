// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package house

import (
	"bytes"
	"go/ast"
	"go/scanner"
	"go/token"
	"strings"
	"testing"
	"unicode/utf8"
)

// A type has at most so many methods and fields, a function so many parameters, a line so many columns.
const (
	mostMethods    = 25
	mostFields     = 20
	mostParameters = 6
	mostColumns    = 140
	wideString     = 40 // columns of a string that may make a line longer
)

// largeTypes are the types that may be larger, with how many methods and fields they may have (0: as many as all) and the reason. They may
// not grow, and a type that has become small leaves the list.
var largeTypes = map[string]struct {
	methods, fields int
	why             string
}{
	"api/config/v1alpha1 ServerConfiguration":            {0, 23, "the configuration file: a section a field"},
	"extension/trace Trace":                              {0, 31, "data: an answer of the API"},
	"internal/agent/cri/fakecri Runtime":                 {51, 23, "a fake of the runtime's whole API"},
	"internal/agent/proxy Options":                       {0, 24, "settings, one field each"},
	"internal/apiserver Options":                         {0, 33, "settings, one field each"},
	"internal/apiserver Server":                          {54, 28, "the stages of the pipeline are steps of one server, and its public methods are half of the rest"},
	"internal/apiserver/admit/webhook generic":           {29, 0, "both halves of admission by webhooks in one"},
	"internal/apiserver/aggregate Aggregator":            {30, 0, "discovery of aggregated servers belongs into learn"},
	"internal/apiserver/explain Trace":                   {26, 35, "one lock guards what the stages of a request record, a method each"},
	"internal/apiserver/flowcontrol Controller":          {30, 0, "its metrics belong into a room of their own"},
	"internal/apiserver/flowcontrol/fair Set":            {29, 25, "one lock guards the queues of a level"},
	"internal/apiserver/verbs req":                       {79, 0, "of one request: its parameters are parsed once, for the verbs and their responses"},
	"internal/controllers/controllertest World":          {44, 23, "a test rig: store, clock and feeds of a simulation"},
	"internal/controllers/deployment planner":            {30, 0, "one pure decision"},
	"internal/controllers/job planner":                   {28, 0, "one pure decision"},
	"internal/scheduler/metrics Metrics":                 {0, 22, "a metric a field"},
	"internal/scheduler/nodeinfo NodeInfo":               {26, 0, "upstream's interface of a node"},
	"internal/scheduler/plugins/dynamicresources plugin": {42, 0, "a method an extension point"},
	"internal/scheduler/plugins/volumebinding plugin":    {29, 0, "a method an extension point"},
	"internal/scheduler/profile Profile":                 {47, 22, "upstream's framework.Framework"},
	"internal/scheduler/profile handle":                  {27, 0, "upstream's framework.Handle"},
	"internal/scheduler/queue Queue":                     {30, 0, "one lock guards the subqueues, the nominator and the events in flight"},
	"resource Descriptor":                                {0, 22, "data: what a kind is"},
	"store/mvcc DB":                                      {27, 0, "one lock guards the index and its history"},
}

// TestTypesAreSmall counts the methods of types, those that they embed left out, and the fields of structs. A larger type does the work of
// several: split it by responsibility, each part with its own state and lock.
func TestTypesAreSmall(t *testing.T) {
	methods, fields := map[string]int{}, map[string]int{}
	for _, s := range tree(t) {
		if s.isTest() || s.generated() {
			continue
		}
		for _, d := range s.file.Decls {
			switch d := d.(type) {
			case *ast.FuncDecl:
				if d.Recv != nil {
					methods[s.dir()+" "+receiver(d)]++
				}
			case *ast.GenDecl:
				for _, spec := range d.Specs {
					if ts, ok := spec.(*ast.TypeSpec); ok {
						fields[s.dir()+" "+ts.Name.Name] = size(ts.Type)
					}
				}
			}
		}
	}
	large := map[string]bool{}
	check := func(counted map[string]int, what string, most int, listed func(name string) int) {
		for name, n := range counted {
			if n <= most {
				continue
			}
			large[name] = true
			if n > max(most, listed(name)) {
				t.Errorf("%s has %d %s: split it by responsibility, %d is the most", name, n, what, max(most, listed(name)))
			}
		}
	}
	check(methods, "methods", mostMethods, func(name string) int { return largeTypes[name].methods })
	check(fields, "fields", mostFields, func(name string) int { return largeTypes[name].fields })
	stale(t, largeTypes, large, "is small enough")
}

// receiver returns the name of the type that a method belongs to.
func receiver(d *ast.FuncDecl) string {
	at := d.Recv.List[0].Type
	for {
		switch x := at.(type) {
		case *ast.StarExpr:
			at = x.X
		case *ast.IndexExpr:
			at = x.X
		case *ast.IndexListExpr:
			at = x.X
		case *ast.Ident:
			return x.Name
		default:
			return ""
		}
	}
}

// size returns the number of a struct's fields, 0 for other types.
func size(e ast.Expr) int {
	s, ok := e.(*ast.StructType)
	if !ok {
		return 0
	}
	n := 0
	for _, f := range s.Fields.List {
		n += max(len(f.Names), 1)
	}
	return n
}

// stale reports the entries of a list of exceptions that nothing needs any more.
func stale[T any](t *testing.T, listed map[string]T, needed map[string]bool, why string) {
	t.Helper()
	for name := range listed {
		if !needed[name] {
			t.Errorf("%s %s: take it off the list", name, why)
		}
	}
}

// manyParameters are the functions that may have more parameters, by file and name, with the reason.
var manyParameters = map[string]string{
	"internal/scheduler/recorder/reporter.go Eventf":          "client-go's EventRecorder",
	"internal/scheduler/recorder/reporter.go AnnotatedEventf": "client-go's AnnotatedEventRecorder",
}

// TestFunctionsTakeFewParameters counts the parameters of declared functions beside the context, tests and their fakes left out. One with
// more takes a struct whose fields have names.
func TestFunctionsTakeFewParameters(t *testing.T) {
	many := map[string]bool{}
	for _, s := range tree(t) {
		if s.isTest() || s.generated() {
			continue
		}
		for _, d := range s.file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || parameters(f) <= mostParameters {
				continue
			}
			at := s.path + " " + f.Name.Name
			many[at] = true
			if manyParameters[at] == "" {
				t.Errorf("%s:%d: %s has %d parameters: let it take a struct, %d is the most", s.path, s.line(f), f.Name.Name,
					parameters(f), mostParameters)
			}
		}
	}
	stale(t, manyParameters, many, "takes few parameters")
}

// parameters returns the number of a function's parameters that are no context.
func parameters(f *ast.FuncDecl) int {
	n := 0
	for _, p := range f.Type.Params.List {
		if x, ok := p.Type.(*ast.SelectorExpr); !ok || x.Sel.Name != "Context" {
			n += max(len(p.Names), 1)
		}
	}
	return n
}

// TestLinesAreShort: a line is longer than mostColumns only for one string, which is not broken so that people find it by its text.
func TestLinesAreShort(t *testing.T) {
	for _, s := range tree(t) {
		if s.generated() {
			continue
		}
		literals := widestStrings(s.text)
		for n, line := range bytes.Split(s.text, []byte("\n")) {
			if width := utf8.RuneCount(line); width > mostColumns && (literals[n+1] < wideString || width-literals[n+1] > mostColumns) {
				t.Errorf("%s has %d columns: wrap it, %d is the most", s.at(n+1), width, mostColumns)
			}
		}
	}
}

// widestStrings returns the columns of the widest string literal on each line, lines from 1.
func widestStrings(text []byte) map[int]int {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	widest := map[int]int{}
	for {
		at, kind, literal := s.Scan()
		if kind == token.EOF {
			return widest
		}
		if kind != token.STRING {
			continue
		}
		for n, part := range strings.Split(literal, "\n") {
			line := file.Line(at) + n
			widest[line] = max(widest[line], utf8.RuneCountInString(part))
		}
	}
}

// TestReceiver holds the two readers of types to what the syntax allows.
func TestReceiver(t *testing.T) {
	for text, want := range map[string]string{"(t T)": "T", "(t *T)": "T", "(t *T[K])": "T", "(t T[K, V])": "T"} {
		f := parseFunction(t, "func "+text+" m() {}")
		if got := receiver(f); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	for text, want := range map[string]int{"struct{}": 0, "struct{ a, b int; c }": 3, "interface{ m() }": 0} {
		f := parseFunction(t, "func f(x "+text+") {}")
		if got := size(f.Type.Params.List[0].Type); got != want {
			t.Errorf("%s: %d fields, want %d", strings.TrimSpace(text), got, want)
		}
	}
}

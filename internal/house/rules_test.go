// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package house

import (
	"bytes"
	"go/ast"
	"path"
	"slices"
	"strings"
	"testing"
)

func TestFilesAreShort(t *testing.T) {
	for _, s := range tree(t) {
		if n := s.lines(); n > 600 && !s.generated() {
			t.Errorf("%s has %d lines: split it by concept, 600 is the most", s.path, n)
		}
	}
}

func TestFilesCarryTheLicence(t *testing.T) {
	head := []byte("// SPDX-FileCopyrightText: The Mortise Authors\n// SPDX-License-Identifier: Apache-2.0\n")
	for _, s := range tree(t) {
		if !bytes.Contains(s.text[:min(len(s.text), 400)], head) {
			t.Errorf("%s does not begin with the two SPDX lines", s.path)
		}
	}
}

func TestPackagesHaveATour(t *testing.T) {
	documented := map[string]bool{}
	for _, s := range tree(t) {
		if s.isTest() {
			continue
		}
		documented[s.dir()] = documented[s.dir()] || s.file.Doc != nil
	}
	for dir, ok := range documented {
		if !ok {
			t.Errorf("%s has no package comment: say what it is for, its main types, who may call it at once", dir)
		}
	}
}

func TestNamesSayWhatTheyHold(t *testing.T) {
	vague := []string{"util", "utils", "common", "helper", "helpers", "misc", "base", "shared", "lib"}
	for _, s := range tree(t) {
		name := strings.TrimSuffix(strings.TrimSuffix(path.Base(s.path), ".go"), "_test")
		if slices.Contains(vague, path.Base(s.dir())) || slices.Contains(vague, name) {
			t.Errorf("%s: name it for the concept that it holds", s.path)
		}
	}
}

// TestNothingHappensByImport bans init functions. One is needed, and says why.
func TestNothingHappensByImport(t *testing.T) {
	allowed := []string{"internal/cli/translations/translations.go"}
	for _, s := range tree(t) {
		if slices.Contains(allowed, s.path) || s.generated() {
			continue
		}
		for _, d := range s.file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && f.Name.Name == "init" {
				t.Errorf("%s:%d: init function: return a value from a function and list it in internal/builtin", s.path, s.line(f))
			}
		}
	}
}

// TestBannedCalls names for each banned call what to use.
func TestBannedCalls(t *testing.T) {
	everywhere := map[string]string{
		"time.Sleep":          "wait for an event, or use an injected clock (testing/synctest in tests)",
		"wait.Poll":           "wait for an event",
		"wait.PollUntil":      "wait for an event",
		"wait.PollImmediate":  "wait for an event",
		"ioutil.ReadAll":      "io.ReadAll behind an io.LimitReader",
		"log.Printf":          "the *slog.Logger that was passed in",
		"log.Fatal":           "return the error",
		"slog.SetDefault":     "pass the *slog.Logger in",
		"http.HandleFunc":     "a handler in the pipeline's table",
		"prometheus.Register": "a registry that is passed in",
	}
	pure := map[string]string{
		"time.Now":   "a clock that is passed in: this package decides, it does not look at the clock",
		"time.Since": "a clock that is passed in",
		"time.After": "a clock that is passed in",
		"rand.Intn":  "a source that is passed in",
	}
	pureRooms := []string{
		"store/mvcc", "internal/scheduler/core", "internal/scheduler/queue", "internal/controllers", "resource",
		"internal/agent/allocatable", "internal/agent/decide", "internal/agent/evict", "internal/agent/podadmission",
		"internal/agent/podspec", "internal/agent/podstatus", "internal/apiserver/flowcontrol/fair", "internal/podrefs",
	}
	for _, s := range tree(t) {
		room := ""
		for _, r := range pureRooms {
			if s.dir() == r || strings.HasPrefix(s.dir(), r+"/") {
				room = r
			}
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := c.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			x, ok := sel.X.(*ast.Ident)
			if !ok {
				return true
			}
			name := x.Name + "." + sel.Sel.Name
			if name == "time.Sleep" && slices.Contains(s.imports(), "testing/synctest") {
				return true // the bubble's clock, which costs no time
			}
			if instead, ok := everywhere[name]; ok {
				t.Errorf("%s:%d: %s: %s", s.path, s.line(c), name, instead)
			}
			if instead, ok := pure[name]; ok && room != "" && !s.isTest() {
				t.Errorf("%s:%d: %s: %s", s.path, s.line(c), name, instead)
			}
			return true
		})
	}
}

// storedContexts are the structs that may hold a context, with the reason.
var storedContexts = map[string]string{
	"extension/webhook Endpoints":                "upstream's ServiceResolver, whose method takes no context",
	"internal/apiserver requestRecord":           "it is the context of one request",
	"internal/apiserver/audit tap":               "of one request: http.ResponseWriter's methods take none",
	"internal/apiserver/authenticate bare":       "it is a context, without the values of the one that it wraps",
	"internal/apiserver/encryption Transformers": "the plug-ins of a reloaded configuration outlive the reload, until Close",
	"internal/apiserver/verbs req":               "of one request",
	"internal/apiserver/watchcache Lifetime":     "a request starts a feed, which outlives it: the feeds end with the server",
	"internal/controllers/controllertest World":  "ends when the simulated controllers die",
	"internal/eventsink sink":                    "client-go's EventSink, whose methods take no context",
	"store/storetest fixture":                    "of one test",
}

// TestContextsAreArguments looks for contexts in structs, tests left out: a function takes its context first, so that its caller sees when
// it ends.
func TestContextsAreArguments(t *testing.T) {
	stored := map[string]bool{}
	for _, s := range tree(t) {
		if s.isTest() || s.generated() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			of, ok := spec.Type.(*ast.StructType)
			if !ok {
				return true
			}
			for _, f := range of.Fields.List {
				x, ok := f.Type.(*ast.SelectorExpr)
				if !ok || x.Sel.Name != "Context" {
					continue
				}
				if from, ok := x.X.(*ast.Ident); !ok || from.Name != "context" {
					continue
				}
				name := s.dir() + " " + spec.Name.Name
				stored[name] = true
				if storedContexts[name] == "" {
					t.Errorf("%s:%d: %s holds a context: let its functions take it", s.path, s.line(f), spec.Name.Name)
				}
			}
			return true
		})
	}
	stale(t, storedContexts, stored, "holds no context")
}

// TestErrorsSayWhatWasDone leaves alone what is upstream's own text on the wire and is marked so at the line's end, or
// on the line above the statement.
func TestErrorsSayWhatWasDone(t *testing.T) {
	const mark = "// upstream's words"
	for _, s := range tree(t) {
		if s.isTest() {
			continue
		}
		lines := strings.Split(string(s.text), "\n")
		ast.Inspect(s.file, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok || len(c.Args) == 0 {
				return true
			}
			sel, ok := c.Fun.(*ast.SelectorExpr)
			if !ok || (sel.Sel.Name != "Errorf" && sel.Sel.Name != "New") {
				return true
			}
			if x, ok := sel.X.(*ast.Ident); !ok || (x.Name != "fmt" && x.Name != "errors") {
				return true
			}
			if l, ok := c.Args[0].(*ast.BasicLit); ok && strings.HasPrefix(strings.ToLower(l.Value), `"failed to`) &&
				!strings.HasSuffix(lines[s.line(l)-1], mark) && strings.TrimSpace(lines[s.line(c)-2]) != mark {
				t.Errorf("%s:%d: %s: wrap as `verb noun: %%w`, or mark the line with %s", s.path, s.line(c), l.Value, mark)
			}
			return true
		})
	}
}

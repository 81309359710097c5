// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package house

import (
	"go/ast"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

// riddles are phrases that hide who does something. What stands in quotes as code is left alone.
var riddles = regexp.MustCompile(
	`(?i)\b(who has|who have|that which|what (is|was) said|(is|are|was|were) told|says? so|those in who|those who|whom|nobody|somebody|` +
		`anybody|everybody|whoever|by itself it|of its own accord|unless told)\b`)

// commentRiddles are the phrases that comments may not hold.
var commentRiddles = regexp.MustCompile(
	`(?i)\b(who has|who have|that which|(is|are|was|were) told( of)?|says? so|those in who|those who|whom|nobody|somebody|anybody|` +
		`everybody|of its own accord|unless told|whoever|let in|(says|tells) whether)\b`)

// TestDocsArePlain reads README and the guides, as an operator does. Records of decisions and changelog fragments stay as they were
// written.
func TestDocsArePlain(t *testing.T) {
	files := []string{"../../README.md"}
	for _, folder := range []string{"", "points/", "tutorials/"} {
		found, err := filepath.Glob("../../docs/" + folder + "*.md")
		if err != nil || len(found) < 3 {
			t.Fatalf("found %d guides in docs/%s: %v", len(found), folder, err)
		}
		files = append(files, found...)
	}
	code := regexp.MustCompile("`[^`]*`")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		number, example := 0, false
		for line := range strings.Lines(string(text)) {
			number++
			if strings.HasPrefix(line, "```") {
				example = !example
			}
			if phrase := riddles.FindString(code.ReplaceAllString(line, "")); phrase != "" && !example {
				t.Errorf("%s:%d: %q: name the actor, in the active voice", filepath.Base(file), number, phrase)
			}
		}
	}
}

// TestSnippetsOfTheTestingGuideRun: each snippet of docs/testing.md in Go stands in a test, line by line, or a comment before it says why
// it is not run.
func TestSnippetsOfTheTestingGuideRun(t *testing.T) {
	text, err := os.ReadFile("../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	var tests []string
	for _, s := range tree(t) {
		if s.isTest() && strings.HasPrefix(s.path, "embed/") {
			tests = append(tests, string(s.text))
		}
	}
	blocks := regexp.MustCompile("(?m)((?:^<!--.*-->\n)?)^```go\n((?s:.*?))^```$").FindAllStringSubmatch(string(text), -1)
	if len(blocks) < 8 {
		t.Fatalf("found %d snippets", len(blocks))
	}
	for _, b := range blocks {
		if strings.HasPrefix(b[1], "<!-- not run: ") {
			continue
		}
		stands := false
		for depth := range 3 {
			indented := regexp.MustCompile(`(?m)^(.)`).ReplaceAllString(b[2], strings.Repeat("\t", depth)+"$1")
			for _, test := range tests {
				stands = stands || strings.Contains(test, indented)
			}
		}
		if !stands {
			t.Errorf("docs/testing.md: no test below embed has these lines:\n%s", b[2])
		}
	}
}

// TestCommentsArePlain reads the comments of the code beside tests, as TestDocsArePlain reads the guides.
func TestCommentsArePlain(t *testing.T) {
	for _, s := range tree(t) {
		if s.isTest() || s.generated() {
			continue
		}
		for _, group := range s.file.Comments {
			if phrase := commentRiddles.FindString(strings.ReplaceAll(group.Text(), "\n", " ")); phrase != "" {
				t.Errorf("%s:%d: %q: name the actor, in the active voice", s.path, s.line(group), phrase)
			}
		}
	}
}

// TestOutputIsPlain reads the sentences in string literals beside tests: what flags, logs, errors and commands show an operator.
func TestOutputIsPlain(t *testing.T) {
	for _, s := range tree(t) {
		if s.isTest() || s.generated() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			l, ok := n.(*ast.BasicLit)
			if !ok || l.Kind != token.STRING || strings.Count(l.Value, " ") < 2 {
				return true
			}
			if phrase := riddles.FindString(l.Value); phrase != "" {
				t.Errorf("%s:%d: %q: name the actor, in the active voice", s.path, s.line(l), phrase)
			}
			return true
		})
	}
}

// TestLogsAreSentences checks that the message of a log begins with a capital letter and has no full stop, as those of Kubernetes: it says
// what happened, or what could not be done and what follows. Errors, which others wrap, begin with the verb in lower case.
func TestLogsAreSentences(t *testing.T) {
	levels := regexp.MustCompile(`^(Debug|Info|Warn|Error)(Context)?$`)
	for _, s := range tree(t) {
		if s.isTest() || s.generated() {
			continue
		}
		ast.Inspect(s.file, func(n ast.Node) bool {
			c, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := c.Fun.(*ast.SelectorExpr)
			if !ok || !levels.MatchString(sel.Sel.Name) || !strings.HasSuffix(strings.ToLower(lastName(sel.X)), "log") &&
				!strings.HasSuffix(strings.ToLower(lastName(sel.X)), "logger") {
				return true
			}
			for _, arg := range c.Args[:min(len(c.Args), 2)] {
				l, ok := arg.(*ast.BasicLit)
				if !ok || l.Kind != token.STRING {
					continue
				}
				if first := rune(l.Value[1]); unicode.IsLower(first) || strings.HasSuffix(l.Value, `."`) {
					t.Errorf("%s:%d: log %s: begin with a capital letter, as in \"Could not write the pod status\"", s.path, s.line(l), l.Value)
				}
				break
			}
			return true
		})
	}
}

// lastName is the last identifier of an expression such as s.opts.Log.
func lastName(e ast.Expr) string {
	switch x := e.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	}
	return ""
}

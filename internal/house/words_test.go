// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package house

import (
	"go/ast"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

// TestNamesAreInTheFieldsWords checks that the names of packages and of exported types consist of words that exported types and
// packages of Go and Kubernetes have (testdata/words.txt), or that docs/glossary.md explains. A package's name may join words.
func TestNamesAreInTheFieldsWords(t *testing.T) {
	known := knownWords(t)
	seen := map[string]bool{}
	for _, s := range tree(t) {
		if s.isTest() || s.generated() {
			continue
		}
		if name := s.file.Name.Name; !seen[name] && name != "main" {
			seen[name] = true
			if !known[name] && !joined(name, known) {
				t.Errorf("%s: package %s has a name that Go and Kubernetes do not know: rename it, or explain it in docs/glossary.md", s.path, name)
			}
		}
		for _, name := range exportedTypes(s.file) {
			for _, word := range wordsOf(name) {
				if !known[word] {
					t.Errorf("%s: type %s: %q is no word of Go or Kubernetes: rename it, or explain it in docs/glossary.md", s.path, name, word)
				}
			}
		}
	}
}

// knownWords are the words of upstream, and the first column of the glossary's tables.
func knownWords(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{}
	upstream, err := os.ReadFile("testdata/words.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(upstream)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		for word := range strings.FieldsSeq(line) {
			known[word] = true
			known[word+"s"] = true
		}
	}
	glossary, err := os.ReadFile("../../docs/glossary.md")
	if err != nil {
		t.Fatal(err)
	}
	quoted := regexp.MustCompile("`([a-z0-9]+)`")
	for line := range strings.Lines(string(glossary)) {
		cells := strings.Split(strings.TrimSpace(line), "|")
		if len(cells) < 4 || cells[0] != "" {
			continue
		}
		for _, word := range quoted.FindAllStringSubmatch(cells[1], -1) {
			known[word[1]] = true
		}
	}
	return known
}

// exportedTypes are the names of a file's exported types.
func exportedTypes(file *ast.File) (names []string) {
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			continue
		}
		for _, spec := range g.Specs {
			if s, ok := spec.(*ast.TypeSpec); ok && s.Name.IsExported() {
				names = append(names, s.Name.Name)
			}
		}
	}
	return names
}

// wordsOf splits a name by its capitals, in lower case, digits and single letters left out: HTTP2ServerOf is http, server and of.
func wordsOf(name string) (words []string) {
	runes := []rune(name)
	begin := 0
	for i := 1; i <= len(runes); i++ {
		if i < len(runes) {
			upper := unicode.IsUpper(runes[i])
			follows := upper && !unicode.IsUpper(runes[i-1])
			ends := upper && i+1 < len(runes) && unicode.IsLower(runes[i+1])
			digit := unicode.IsDigit(runes[i]) != unicode.IsDigit(runes[i-1])
			if !follows && !ends && !digit {
				continue
			}
		}
		if word := strings.ToLower(string(runes[begin:i])); i-begin > 1 && !unicode.IsDigit(runes[begin]) {
			words = append(words, word)
		}
		begin = i
	}
	return words
}

// joined reports whether a package's name is known, or several known words; a part of two letters has to be one of a few.
func joined(name string, known map[string]bool) bool {
	short := []string{"ip", "gc", "id", "os"}
	ends := make([]bool, len(name)+1)
	ends[0] = true
	for to := 1; to <= len(name); to++ {
		for from := range to {
			part := name[from:to]
			if ends[from] && known[part] && (len(part) > 2 || part == name || slices.Contains(short, part)) {
				ends[to] = true
			}
		}
	}
	return ends[len(name)]
}

func TestWordsOf(t *testing.T) {
	for name, want := range map[string]string{
		"Feed": "feed", "HTTPServer": "http server", "FieldURL": "field url", "HTTP2Streams": "http streams", "NodeCIDRMask": "node cidr mask",
		"X": "",
	} {
		if got := strings.Join(wordsOf(name), " "); got != want {
			t.Errorf("%s is split into %q, want %q", name, got, want)
		}
	}
	known := map[string]bool{"pod": true, "status": true, "ip": true, "at": true}
	for name, want := range map[string]bool{"podstatus": true, "podip": true, "podat": false, "at": true, "cork": false, "pods": false} {
		if got := joined(name, known); got != want {
			t.Errorf("joined(%s) is %t", name, got)
		}
	}
}

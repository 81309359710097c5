// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/internal/cli/manual"
)

// TestGuidesNameCommands reads the command lines of README and the guides: each names a command that exists, with flags that it has. It
// runs none of them.
func TestGuidesNameCommands(t *testing.T) {
	flags := map[string]map[string]bool{} // by command
	for _, p := range pages(t.Context(), Program{AddFlags: addFlags, Engines: engines}) {
		flags[p.Name] = names(p)
	}
	for name := range flags["up"] { // config print takes them too
		flags["config"][name] = true
	}
	flags["config"]["defaults"] = true
	verb := map[string]verb{}
	for _, v := range verbs() {
		verb[v.name] = v
	}
	files := []string{"../../README.md"}
	for _, folder := range []string{"", "points/", "tutorials/"} {
		found, err := filepath.Glob("../../docs/" + folder + "*.md")
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	seen := 0
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range commandLines(string(text)) {
			words := strings.Fields(line)
			v, ok := verb[words[0]]
			if words[0] == "help" {
				continue
			}
			if !ok {
				t.Errorf("%s: mortise %s: there is no such command", filepath.Base(file), line)
				continue
			}
			seen++
			if v.name == "kubectl" {
				continue
			}
			name := v.name
			if len(words) > 1 && flags[name+" "+words[1]] != nil {
				name += " " + words[1]
			}
			for _, w := range words {
				if w == "--" {
					break
				}
				flag, isFlag := strings.CutPrefix(w, "--")
				flag, _, _ = strings.Cut(flag, "=")
				if isFlag && !flags[name][flag] && flag != "help" {
					t.Errorf("%s: mortise %s: %s has no flag --%s", filepath.Base(file), line, name, flag)
				}
			}
		}
	}
	if seen < 60 {
		t.Errorf("found only %d command lines", seen)
	}
}

// names returns the names of a page's flags.
func names(p manual.Page) map[string]bool {
	out := map[string]bool{}
	for _, g := range p.Groups {
		for _, f := range g.Flags {
			out[f.Long] = true
		}
	}
	return out
}

var (
	inline  = regexp.MustCompile("`(?:bin/)?mortise ([a-z][^`]*)`")
	command = regexp.MustCompile(`^(?:\s+|\$ |)(?:sudo )?(?:bin/)?mortise ([a-z].*)$`)
	comment = regexp.MustCompile(`\s#.*|[<|;&)].*`)
)

// commandLines returns the command lines of a text, without the name of the program: in quotes, and in blocks that are fenced or indented.
func commandLines(text string) (out []string) {
	fenced, before := false, ""
	for line := range strings.Lines(strings.ReplaceAll(text, "\\\n", " ")) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		m := command.FindStringSubmatch(line)
		if m != nil && (fenced || strings.HasPrefix(line, "    ") && (before == "" || strings.HasPrefix(before, "    "))) {
			out = append(out, strings.TrimSpace(comment.ReplaceAllString(m[1], "")))
		} else if !fenced {
			for _, m := range inline.FindAllStringSubmatch(line, -1) {
				out = append(out, strings.TrimSpace(comment.ReplaceAllString(m[1], "")))
			}
		}
		before = line
	}
	return out
}

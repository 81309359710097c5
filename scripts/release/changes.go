// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// changes are the fragments of docs/changes, the newest day first.
type changes []day

type day struct {
	date  string
	texts []string // the items of its fragments, in the order of the files' names
}

// dateLength is the length of the date at the beginning of a fragment's name.
const dateLength = len("2026-11-28")

// readChanges reads the fragments of a directory: files with the name DATE-SUBJECT.md beside README.md, each a text or a list of texts.
func readChanges(dir string) (changes, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		return nil, fmt.Errorf("list changes: %w", err)
	}
	slices.Sort(files)
	var out changes
	for _, file := range files {
		name := filepath.Base(file)
		if name == "README.md" {
			continue
		}
		if len(name) <= dateLength {
			return nil, fmt.Errorf("change %s: want DATE-SUBJECT.md", file)
		}
		if _, err := time.Parse(time.DateOnly, name[:dateLength]); err != nil {
			return nil, fmt.Errorf("change %s: want DATE-SUBJECT.md: %w", file, err)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("read change: %w", err)
		}
		if len(out) == 0 || out[len(out)-1].date != name[:dateLength] {
			out = append(out, day{date: name[:dateLength]})
		}
		last := &out[len(out)-1]
		last.texts = append(last.texts, items(string(text))...)
	}
	slices.Reverse(out)
	return out, nil
}

// items splits a fragment: it is a list, or one item. An item is one line.
func items(text string) (out []string) {
	begin := true
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, " \n")
		rest, listed := strings.CutPrefix(line, "- ")
		switch {
		case line == "":
			begin = true
		case listed || begin && !strings.HasPrefix(line, " "):
			out, begin = append(out, rest), false
		default:
			out[max(len(out)-1, 0)] += " " + strings.TrimSpace(line)
		}
	}
	return out
}

// markdown returns the changelog.
func (c changes) markdown() []byte {
	var b strings.Builder
	b.WriteString("# Changes\n")
	for _, d := range c {
		fmt.Fprintf(&b, "\n## %s\n\n", d.date)
		for _, text := range d.texts {
			fmt.Fprintf(&b, "- %s\n", text)
		}
	}
	return []byte(b.String())
}

// debian returns the changelog in Debian's form (deb-changelog(5)): one entry, for the version.
func (c changes) debian(version, maintainer string, at time.Time) []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "mortise (%s) unstable; urgency=medium\n\n", version)
	for _, d := range c {
		for _, text := range d.texts {
			fmt.Fprintf(&b, "%s\n", wrapped("  * ", "    ", text, 79))
		}
	}
	fmt.Fprintf(&b, "\n -- %s  %s\n", maintainer, at.Format(time.RFC1123Z))
	return []byte(b.String())
}

// wrapped breaks a text into lines of a width, with a prefix for the first and one for the others.
func wrapped(first, others, text string, width int) string {
	out, line := "", first
	for i, word := range strings.Fields(text) {
		if i > 0 && len(line)+1+len(word) > width {
			out, line = out+line+"\n", others
		} else if i > 0 {
			line += " "
		}
		line += word
	}
	return out + line
}

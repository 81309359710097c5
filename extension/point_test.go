// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extension

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestPointsHavePages: each point has a page, and no page is of another thing. A page names an example, and all that it names are there; or
// it gives the reason why there is none. It has the sections that a reader expects.
func TestPointsHavePages(t *testing.T) {
	pages, err := filepath.Glob("../docs/points/*.md")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile(`\bexamples/[\w./-]*\w`)
	for _, d := range Points() {
		page := "../" + d.Documented
		i := slices.Index(pages, page)
		if i < 0 || d.Documented != "docs/points/"+string(d.Point)+".md" {
			t.Errorf("%s has the page %s", d.Point, d.Documented)
			continue
		}
		pages = slices.Delete(pages, i, i+1)
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		named := example.FindAllString(string(text), -1)
		for _, name := range named {
			if _, err := os.Stat("../" + name); err != nil {
				t.Errorf("%s names %s: %v", page, name, err)
			}
		}
		if len(named) == 0 && !strings.Contains(string(text), "No example") {
			t.Errorf("%s names no example, and does not say why there is none", page)
		}
		for _, part := range []string{"\n## Example\n", "\n## When it fails\n", "\nRead on: ", "mortise extensions"} {
			if !strings.Contains(string(text), part) && (part != "\nRead on: " || !strings.Contains(string(text), "tutorial")) {
				t.Errorf("%s has no %q", page, part)
			}
		}
		if lines := strings.Count(string(text), "\n"); lines < 25 || lines > 70 {
			t.Errorf("%s has %d lines", page, lines)
		}
	}
	for _, page := range pages {
		t.Errorf("%s is of no point", page)
	}
}

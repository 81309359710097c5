// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package house

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// riddles are phrases that hide who does something. What stands in quotes as code is left alone.
var riddles = regexp.MustCompile(`(?i)\b(who has|who have|that which|(is|are) told of|says? so|those in who|those who|for whom|whom it|nobody knows|by itself it|of its own accord|unless told)\b`)

// TestDocsArePlain reads README and the guides, as an operator does. Records of decisions and changelog fragments stay as they were written.
func TestDocsArePlain(t *testing.T) {
	files, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(files) < 15 {
		t.Fatalf("found %d guides: %v", len(files), err)
	}
	code := regexp.MustCompile("`[^`]*`")
	for _, file := range append(files, "../../README.md") {
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

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// mostAtFirst is the maximum size of all that a browser loads before it shows the page, compressed, in bytes.
const mostAtFirst = 150_000

// built is the manifest of the page.
type built struct {
	Assets  []string `json:"assets"`
	Initial []string `json:"initial"`
	Sources string   `json:"sources"`
}

func readBuilt(t *testing.T) *built {
	t.Helper()
	raw, err := dist.ReadFile("z_dist/z_manifest.json")
	if err != nil {
		t.Fatal(err)
	}
	m := &built{}
	if err := json.Unmarshal(raw, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// TestPageIsSmall adds up what a browser loads at first.
func TestPageIsSmall(t *testing.T) {
	m := readBuilt(t)
	total := 0
	for _, name := range m.Initial {
		b, err := dist.ReadFile("z_dist/z_" + name + ".gz")
		if err != nil {
			t.Fatal(err)
		}
		total += len(b)
	}
	if len(m.Initial) < 3 || total > mostAtFirst {
		t.Errorf("the page loads %d assets of %d bytes at first, want some of at most %d bytes", len(m.Initial), total, mostAtFirst)
	}
	t.Logf("%d bytes at first", total)
}

// TestPageIsOfItsSources fails if somebody changed the sources of the page and did not run `go generate ./internal/console`.
func TestPageIsOfItsSources(t *testing.T) {
	files := []string{"build.mjs", "index.html", "package-lock.json", "package.json", "tsconfig.json"}
	files = append(files, sources(t, "")...)
	slices.Sort(files)
	sum := sha256.New()
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join("web", f))
		if err != nil {
			t.Fatal(err)
		}
		sum.Write([]byte(filepath.ToSlash(f) + "\x00"))
		sum.Write(b)
		sum.Write([]byte{0})
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != readBuilt(t).Sources {
		t.Error("z_dist is of other sources than those below web: run `go generate ./internal/console`")
	}
}

// markup makes elements of text, or runs it: what a pod, a user or a webhook says must stay text.
var markup = regexp.MustCompile(`innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySet|\beval\(|new Function\(|DOMParser|srcdoc|javascript:|` +
	`createContextualFragment|setHTMLUnsafe`)

// TestTextStaysText searches the page's own sources for ways to turn text into elements.
func TestTextStaysText(t *testing.T) {
	seen := 0
	for _, f := range sources(t, ".ts") {
		b, err := os.ReadFile(filepath.Join("web", f))
		if err != nil {
			t.Fatal(err)
		}
		seen++
		lines := strings.Split(string(b), "\n")
		for i, line := range lines {
			if found := markup.FindString(line); found != "" {
				t.Errorf("web/%s:%d: %s: write text by text nodes", f, i+1, found)
			}
			if len([]rune(line)) > 140 {
				t.Errorf("web/%s:%d: longer than 140 columns", f, i+1)
			}
		}
		if len(lines) > 600 {
			t.Errorf("web/%s: %d lines, want at most 600", f, len(lines))
		}
	}
	if seen < 20 {
		t.Errorf("%d sources were read", seen)
	}
}

// sources are the files below web/src, those with an extension that begins so.
func sources(t *testing.T, extension string) (files []string) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join("web", "src"), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasPrefix(filepath.Ext(path), extension) {
			return err
		}
		rel, err := filepath.Rel("web", path)
		files = append(files, rel)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

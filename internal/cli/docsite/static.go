// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package docsite

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mortise-dev/mortise/internal/durable"
)

// Write writes the site as static files. They need no server: the search is search.html with search.js, which has the texts of all pages.
func (s *Site) Write(dir string) error {
	texts, err := s.texts()
	if err != nil {
		return err
	}
	searching := &Page{Path: "search.html", Title: "Search", HTML: `<h1>Search</h1>
<noscript>Searching these files needs JavaScript; <code>mortise docs</code> serves the same pages with a search that does not.</noscript>
<div id="found"></div><script src="search.js"></script>
`}
	files := map[string][]byte{"search.js": texts}
	for _, p := range append([]*Page{s.find(""), searching}, s.pages...) {
		files[p.Path] = s.render(view{Page: p, static: true})
	}
	for name, text := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil { //nolint:gosec // everybody may read it
			return fmt.Errorf("make directory of pages: %w", err)
		}
		if err := durable.Write(file, 0o644, text); err != nil {
			return fmt.Errorf("write page: %w", err)
		}
	}
	return nil
}

// texts returns the script of the static search.
func (s *Site) texts() ([]byte, error) {
	type text struct {
		Path  string `json:"path"`
		Title string `json:"title"`
		Text  string `json:"text"`
	}
	all := make([]text, len(s.pages))
	for i, p := range s.pages {
		all[i] = text{p.Path, p.Title, p.source}
	}
	b, err := json.Marshal(all)
	if err != nil {
		return nil, fmt.Errorf("write texts of pages: %w", err)
	}
	return fmt.Appendf(nil, "const pages = %s;\n%s", b, searchScript), nil
}

// searchScript finds what [Site.search] finds.
const searchScript = `
const mostFound = 30;

// find returns the pages that contain all words of a query, those with a word in the title first.
function find(query) {
  const words = query.toLowerCase().split(/\s+/).filter(w => w);
  const found = [];
  for (const p of words.length ? pages : []) {
    const text = p.text.toLowerCase(), title = p.title.toLowerCase();
    const counts = words.map(w => text.split(w).length - 1);
    if (counts.includes(0)) continue;
    const rank = words.reduce((sum, w, i) => sum + counts[i] + (title.includes(w) ? 1000 : 0), 0);
    const line = p.text.split("\n").find(l => !l.startsWith("#") && l.toLowerCase().includes(words[0]));
    found.push({path: p.path, title: p.title, rank, excerpt: (line || "").trim()});
  }
  return found.sort((a, b) => b.rank - a.rank).slice(0, mostFound);
}

function show(query, into) {
  const add = (parent, name, text) => {
    const e = document.createElement(name);
    e.textContent = text;
    return parent.appendChild(e);
  };
  const found = find(query);
  add(into, "p", found.length + " pages for “" + query + "”");
  for (const f of found) {
    const p = add(into, "p", "");
    add(p, "a", f.title).href = f.path;
    add(p, "br", "");
    p.append(f.excerpt);
  }
}

if (typeof document !== "undefined") {
  const query = new URLSearchParams(location.search).get("q") || "";
  document.querySelector("input[name=q]").value = query;
  if (query) show(query, document.getElementById("found"));
}
`

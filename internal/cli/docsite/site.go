// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package docsite makes a web site of Markdown files: pages with a common navigation, and a search. [Site.ServeHTTP] serves it, and
// [Site.Write] writes it as static files with a search of their own. It needs no network, and its pages load nothing from elsewhere.
package docsite

import (
	"bytes"
	"cmp"
	"fmt"
	"html"
	"io/fs"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/yuin/goldmark"
	"github.com/yuin/goldmark/ast"
	"github.com/yuin/goldmark/extension"
	"github.com/yuin/goldmark/parser"
	"github.com/yuin/goldmark/text"
	"github.com/yuin/goldmark/util"
)

// mostFound is how many pages a search shows.
const mostFound = 30

// Page is one page. Path ends in .html and has no leading slash.
type Page struct {
	Path, Title, Section string
	HTML                 string
	plain                string // its Markdown in lower case, for the search
	source               string
}

// Site is the pages in the order of the navigation.
type Site struct {
	pages    []*Page
	byPath   map[string]*Page
	markdown goldmark.Markdown
}

// Source is a Markdown file: its path ends in .md.
type Source struct {
	Path, Section string
	Text          []byte
}

// Sources reads all Markdown files below a directory: those in folders have the folder's name as their section.
func Sources(files fs.FS, section string) ([]Source, error) {
	var out []Source
	err := fs.WalkDir(files, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || path.Ext(p) != ".md" {
			return err
		}
		b, err := fs.ReadFile(files, p)
		if err != nil {
			return err
		}
		of := section
		if dir := path.Dir(p); dir != "." {
			of = strings.ToUpper(dir[:1]) + dir[1:]
		}
		out = append(out, Source{Path: p, Section: of, Text: b})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read guides: %w", err)
	}
	return out, nil
}

// New makes a site of sources. The page index.html lists the others, unless a source is index.md.
func New(sources []Source) (*Site, error) {
	s := &Site{byPath: map[string]*Page{}, markdown: goldmark.New(
		goldmark.WithExtensions(extension.Table, extension.Strikethrough),
		goldmark.WithParserOptions(parser.WithAutoHeadingID(), parser.WithASTTransformers(util.Prioritized(linkRewriter{}, 100))),
	)}
	for _, src := range sources {
		var b bytes.Buffer
		if err := s.markdown.Convert(src.Text, &b); err != nil {
			return nil, fmt.Errorf("convert %s: %w", src.Path, err)
		}
		p := &Page{
			Path: toPage(src.Path), Title: title(src), Section: src.Section,
			HTML:  b.String(), // goldmark leaves out what is no Markdown
			plain: strings.ToLower(string(src.Text)), source: string(src.Text),
		}
		s.pages = append(s.pages, p)
		s.byPath[p.Path] = p
	}
	return s, nil
}

var heading = regexp.MustCompile(`(?m)^# (.+)$`)

// title is a source's first heading, or its name.
func title(src Source) string {
	if m := heading.FindSubmatch(src.Text); m != nil {
		return strings.ReplaceAll(string(m[1]), "`", "")
	}
	return strings.TrimSuffix(path.Base(src.Path), ".md")
}

// linkRewriter lets links to Markdown files lead to their pages.
type linkRewriter struct{}

// Transform implements [parser.ASTTransformer].
func (linkRewriter) Transform(doc *ast.Document, _ text.Reader, _ parser.Context) {
	_ = ast.Walk(doc, func(n ast.Node, entering bool) (ast.WalkStatus, error) {
		if l, ok := n.(*ast.Link); ok && entering {
			l.Destination = []byte(toPage(string(l.Destination)))
		}
		return ast.WalkContinue, nil
	})
}

// toPage returns the path of a Markdown file's page, or the target of a link to one in the same tree; others stay. The prefix of generated
// files is left out.
func toPage(link string) string {
	file, fragment, has := strings.Cut(link, "#")
	if strings.Contains(link, "://") || path.Ext(file) != ".md" {
		return link
	}
	dir, name := path.Split(strings.TrimSuffix(file, ".md") + ".html")
	file = dir + strings.TrimPrefix(name, "z_")
	if has {
		file += "#" + fragment
	}
	return file
}

// Broken returns the relative links that lead nowhere, as "page: link". A link may leave the site for a file that exists, by its path from
// the site's root.
func (s *Site) Broken(exists func(path string) bool) []string {
	var out []string
	for _, p := range s.pages {
		for _, m := range regexp.MustCompile(`href="([^"]+)"`).FindAllStringSubmatch(p.HTML, -1) {
			file, fragment, _ := strings.Cut(m[1], "#")
			if strings.Contains(m[1], "://") || strings.HasPrefix(m[1], "mailto:") {
				continue
			}
			to := p
			if file != "" {
				at := path.Join(path.Dir(p.Path), file)
				if strings.HasPrefix(at, "../") && exists(at) {
					continue
				}
				to = s.byPath[at]
			}
			if to == nil || fragment != "" && !strings.Contains(to.HTML, `id="`+fragment+`"`) {
				out = append(out, p.Path+": "+m[1])
			}
		}
	}
	return out
}

// result is a page that a search has found.
type result struct {
	*Page
	Excerpt string
	rank    int
}

// search returns the pages that contain all words of a query. Pages with a word in the title come first, then pages with more occurrences.
func (s *Site) search(query string) []result {
	words := strings.Fields(strings.ToLower(query))
	var out []result
	for _, p := range s.pages {
		r := result{Page: p}
		for _, w := range words {
			n := strings.Count(p.plain, w)
			if n == 0 {
				r.rank = 0
				break
			}
			r.rank += n
			if strings.Contains(strings.ToLower(p.Title), w) {
				r.rank += 1000
			}
		}
		if r.rank > 0 {
			r.Excerpt = excerpt(p, words[0])
			out = append(out, r)
		}
	}
	slices.SortStableFunc(out, func(a, b result) int { return cmp.Compare(b.rank, a.rank) })
	return out[:min(len(out), mostFound)]
}

// excerpt returns the first line of a page's text that has a word.
func excerpt(p *Page, word string) string {
	for line := range strings.Lines(p.source) {
		if !strings.HasPrefix(line, "#") && strings.Contains(strings.ToLower(line), word) {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// view is one page as it is shown.
type view struct {
	*Page
	static  bool // it is a file, and the search another
	query   string
	results []result
}

// render writes a page with its frame. It uses no template: package html/template would keep every method of the program linked.
func (s *Site) render(v view) []byte {
	root := strings.Repeat("../", strings.Count(v.Path, "/")) // the way from the page to the site's root
	text := html.EscapeString
	var b bytes.Buffer
	fmt.Fprintf(&b, frame, text(v.Title), style, root)
	searched := "/search"
	if v.static {
		searched = root + "search.html"
	}
	fmt.Fprintf(&b, searchForm, searched, text(v.query))
	section := ""
	for _, p := range s.pages {
		if p.Section != section {
			section = p.Section
			fmt.Fprintf(&b, "<p><strong>%s</strong></p>\n", text(section))
		}
		fmt.Fprintf(&b, "<a href=\"%s%s\">%s</a><br>\n", root, text(p.Path), text(p.Title))
	}
	b.WriteString("</nav><main>\n")
	if v.HTML == "" {
		fmt.Fprintf(&b, "<h1>%s</h1>\n", text(v.Title))
	}
	b.WriteString(v.HTML)
	if v.query != "" {
		fmt.Fprintf(&b, "<p>%d pages for “%s”</p>\n", len(v.results), text(v.query))
	}
	for _, r := range v.results {
		fmt.Fprintf(&b, "<p><a href=\"%s\">%s</a><br>%s</p>\n", text(r.Path), text(r.Title), text(r.Excerpt))
	}
	b.WriteString("</main></body></html>\n")
	return b.Bytes()
}

// find returns the page of a path; that of the root is index.html.
func (s *Site) find(p string) *Page {
	if p == "" {
		p = "index.html"
	}
	if found := s.byPath[p]; found != nil || p != "index.html" {
		return found
	}
	return &Page{Path: p, Title: "Mortise"}
}

// ServeHTTP serves the pages, and the search at /search?q=WORDS.
func (s *Site) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var v view
	if name := strings.TrimPrefix(r.URL.Path, "/"); name == "search" {
		v.Page, v.query = &Page{Path: "search", Title: "Search"}, r.URL.Query().Get("q")
		v.results = s.search(v.query)
	} else if v.Page = s.find(name); v.Page == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'")
	_, _ = w.Write(s.render(v))
}

// The frame of all pages: its title, its style, and the way to the site's root.
const (
	frame = `<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>%s - Mortise</title>
<style>%s</style></head><body><nav><a href="%sindex.html"><strong>Mortise</strong></a>
`
	searchForm = `<form action="%s"><input type="search" name="q" value="%s" aria-label="Search" placeholder="Search"></form>
`
	style = `
body{font:16px/1.5 system-ui,sans-serif;margin:0;display:flex;color:#222;background:#fff}
nav{flex:0 0 16em;padding:1em;background:#f4f4f2;min-height:100vh;font-size:90%}
main{flex:1;padding:1em 2em;max-width:60em;min-width:0}pre{background:#f4f4f2;padding:.8em;overflow-x:auto}code{font-size:90%}
table{border-collapse:collapse}td,th{border:1px solid #ccc;padding:.3em .6em;text-align:left;vertical-align:top}
@media(max-width:50em){body{display:block}nav{min-height:0}}
@media(prefers-color-scheme:dark){body{color:#ddd;background:#1b1b1b}nav,pre{background:#262626}a{color:#8bf}}
`
)

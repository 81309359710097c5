// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package docsite

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/mortise-dev/mortise/docs"
)

func site(t *testing.T) *Site {
	t.Helper()
	sources, err := Sources(fstest.MapFS{
		"a.md": {Data: []byte("# The `first`\n\n" +
			"See [b](b.md#a-part), [d](decisions/0001.md), [out](https://example.com/x.md), [gone](c.md), " +
			"[file](../examples/x.yaml), [no file](../examples/y.yaml).\n\n<script>x</script>\n")},
		"b.md":              {Data: []byte("# Second\n\n## A part\n\n| A | B |\n|---|---|\n| Volume | 2 |\n")},
		"decisions/0001.md": {Data: []byte("Volumes are volumes: [a](../a.md), [no](../b.md#none)\n")},
		"x.txt":             {Data: []byte("no page")},
	}, "Guides")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(sources)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// get returns the status and the body of a page.
func get(t *testing.T, s *Site, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
	return w.Code, w.Body.String()
}

func TestPages(t *testing.T) {
	s := site(t)
	for path, want := range map[string][]string{
		"/": {`<a href="b.html">Second</a>`, "<strong>Decisions</strong>", "font-size:90%}",
			"<h1>Mortise</h1>", `action="/search"`},
		"/a.html": {"<title>The first - Mortise</title>", `href="b.html#a-part"`, `href="decisions/0001.html"`,
			`href="https://example.com/x.md"`, "raw HTML omitted"},
		"/b.html":                 {`<h2 id="a-part">`, "<td>Volume</td>"},
		"/decisions/0001.html":    {`href="../a.html"`, `<a href="../index.html">`},
		"/search?q=volume":        {"2 pages for “volume”", `<a href="decisions/0001.html">0001</a>`},
		"/search?q=SECOND%20part": {"1 pages", `<a href="b.html">Second</a>`},
		"/search?q=%3Cb%3E":       {"0 pages for “&lt;b&gt;”"},
		"/search":                 {"Search"},
	} {
		code, body := get(t, s, path)
		for _, w := range want {
			if code != 200 || !strings.Contains(body, w) {
				t.Errorf("%s: %d, no %q in\n%s", path, code, w, body)
			}
		}
	}
	if code, _ := get(t, s, "/x.html"); code != 404 {
		t.Errorf("a page that does not exist: %d", code)
	}
	if _, body := get(t, s, "/a.html"); strings.Contains(body, "<script>") {
		t.Error("a script of a guide is in its page")
	}
}

func TestBroken(t *testing.T) {
	got := strings.Join(site(t).Broken(func(path string) bool { return path == "../examples/x.yaml" }), ", ")
	if got != "a.html: c.html, a.html: ../examples/y.yaml, decisions/0001.html: ../b.html#none" {
		t.Errorf("got %s", got)
	}
}

// TestGuides: each relative link of the guides leads to a page, and to a heading if it names one.
func TestGuides(t *testing.T) {
	sources, err := Sources(docs.Files, "Guides")
	if err != nil || len(sources) < 30 {
		t.Fatalf("%d guides, %v", len(sources), err)
	}
	s, err := New(sources)
	if err != nil {
		t.Fatal(err)
	}
	for _, link := range s.Broken(func(path string) bool {
		_, err := os.Stat("../../../docs/" + path)
		return err == nil
	}) {
		t.Errorf("%s leads nowhere", link)
	}
}

// TestWrite: the static files have the same pages, and each leads to the search.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := site(t).Write(dir); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"index.html": `action="search.html"`, "a.html": `action="search.html"`, "decisions/0001.html": `action="../search.html"`,
		"search.html": `<script src="search.js">`, "search.js": `{"path":"a.html","title":"The first","text":"# The`,
	} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %v, no %s in\n%s", name, err, want, b)
		}
	}
}

// TestStaticSearch: the search of the static files finds what the server's does, in the same order. Node.js runs it, which CI installs.
func TestStaticSearch(t *testing.T) {
	if _, err := exec.LookPath("node"); err != nil && os.Getenv("CI") == "" {
		t.Skipf("SKIPPED: %v", err)
	}
	sources, err := Sources(docs.Files, "Guides")
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(sources)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := s.Write(dir); err != nil {
		t.Fatal(err)
	}
	queries := []string{"volume", "Webhook  timeout", "backup restore", "no such word anywhere", "", "(a", "flag"}
	asked, err := json.Marshal(queries)
	if err != nil {
		t.Fatal(err)
	}
	run := `const vm = require("vm"), fs = require("fs");
		vm.runInThisContext(fs.readFileSync(process.argv[1], "utf8"));
		console.log(JSON.stringify(` + string(asked) + `.map(find)));`
	out, err := exec.CommandContext(t.Context(), "node", "-e", run, filepath.Join(dir, "search.js")).CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	type found struct{ Path, Title, Excerpt string }
	var got [][]found
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for i, q := range queries {
		want := []found{}
		for _, r := range s.search(q) {
			want = append(want, found{r.Path, r.Title, r.Excerpt})
		}
		if diff := cmp.Diff(want, got[i]); diff != "" {
			t.Errorf("%q (-served +static)\n%s", q, diff)
		}
	}
	if len(got[0]) < 5 || len(got[3]) > 0 {
		t.Errorf("%d pages have volumes, %d what no page has", len(got[0]), len(got[3]))
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"
)

func compressed(t *testing.T, text string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestAssets(t *testing.T) {
	dir := fstest.MapFS{
		"z_manifest.json":    {Data: []byte(`{"assets":["app-ABC123.js","app-ABC123.css"]}`)},
		"z_index.html":       {Data: []byte("<html>" + base + "</html>")},
		"z_app-ABC123.js.gz": {Data: compressed(t, "let x = 1")}, "z_app-ABC123.js.br": {Data: []byte("brotli")},
		"z_app-ABC123.css.gz": {Data: compressed(t, "a {}")},
	}
	s, err := readStatic(dir)
	if err != nil {
		t.Fatal(err)
	}
	get := func(name, encodings, known string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, "/console/assets/"+name, nil)
		r.Header.Set("Accept-Encoding", encodings)
		r.Header.Set("If-None-Match", known)
		w := httptest.NewRecorder()
		s.serve(w, r, "assets/"+name, &place{})
		return w
	}
	tags := map[string]bool{}
	for _, c := range []struct{ name, accept, encoding, media, body string }{
		{"app-ABC123.js", "gzip, deflate, br", "br", "text/javascript; charset=utf-8", "brotli"},
		{"app-ABC123.js", "br;q=0, gzip", "gzip", "text/javascript; charset=utf-8", string(compressed(t, "let x = 1"))},
		{"app-ABC123.js", "", "", "text/javascript; charset=utf-8", "let x = 1"},
		{"app-ABC123.css", "br, gzip", "gzip", "text/css; charset=utf-8", string(compressed(t, "a {}"))},
	} {
		w := get(c.name, c.accept, "")
		h := w.Header()
		if w.Code != http.StatusOK || h.Get("Content-Encoding") != c.encoding || h.Get("Content-Type") != c.media || w.Body.String() != c.body ||
			h.Get("Cache-Control") != "public, max-age=31536000, immutable" || h.Get("Vary") != "Accept-Encoding" {
			t.Errorf("%s for %q: %d %v %q", c.name, c.accept, w.Code, h, w.Body)
		}
		if tags[h.Get("Etag")] {
			t.Errorf("%s for %q has the ETag of another body", c.name, c.accept)
		}
		tags[h.Get("Etag")] = true
		if again := get(c.name, c.accept, `"x", `+h.Get("Etag")); again.Code != http.StatusNotModified || again.Body.Len() > 0 {
			t.Errorf("%s for %q is sent again: %d", c.name, c.accept, again.Code)
		}
	}
	if w := get("other.js", "gzip", ""); w.Code != http.StatusNotFound {
		t.Errorf("another asset: %d", w.Code)
	}
	for name, change := range map[string]func(fstest.MapFS){
		"z_index.html":    func(d fstest.MapFS) { d["z_index.html"] = &fstest.MapFile{Data: []byte("<html>")} },
		"media type":      func(d fstest.MapFS) { d["z_manifest.json"] = &fstest.MapFile{Data: []byte(`{"assets":["a.exe"]}`)} },
		"z_b.js.gz":       func(d fstest.MapFS) { d["z_manifest.json"] = &fstest.MapFile{Data: []byte(`{"assets":["b.js"]}`)} },
		"z_manifest.json": func(d fstest.MapFS) { delete(d, "z_manifest.json") },
	} {
		wrong := fstest.MapFS{}
		for k, v := range dir {
			wrong[k] = v
		}
		change(wrong)
		if _, err := readStatic(wrong); err == nil || !strings.Contains(err.Error(), "page") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

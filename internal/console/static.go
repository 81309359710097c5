// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strings"
)

// dist is what `go generate` makes of the sources below web:
//
//	z_dist/z_manifest.json  {"assets": ["NAME-HASH.EXT", ...]}
//	z_dist/z_index.html     the page, with <base href="/console/"> and relative URLs
//	z_dist/z_NAME.gz        each asset, compressed with gzip; z_NAME.br with brotli may be there too
//
//go:embed z_dist
var dist embed.FS

// types are the media types of assets by their extension.
var types = map[string]string{
	".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".png": "image/png",
	".ico": "image/x-icon", ".woff2": "font/woff2", ".json": "application/json", ".map": "application/json",
	".txt": "text/plain; charset=utf-8", ".webmanifest": "application/manifest+json",
}

// base is the element of the page that says where the console is.
const base = `<base href="` + Root + `">`

// static is the page and its assets. It does not change.
type static struct {
	index  []byte
	assets map[string]*asset
}

// asset is a file that never changes under its name.
type asset struct {
	media        string
	gzip, brotli []byte // compressed; brotli may be nil
	tag          string
}

func loadStatic() (*static, error) {
	dir, err := fs.Sub(dist, "z_dist")
	if err != nil {
		return nil, fmt.Errorf("open page: %w", err)
	}
	return readStatic(dir)
}

func readStatic(dir fs.FS) (*static, error) {
	manifest, err := fs.ReadFile(dir, "z_manifest.json")
	if err != nil {
		return nil, fmt.Errorf("read manifest of the page: %w", err)
	}
	var listed struct {
		Assets []string `json:"assets"`
	}
	if err := json.Unmarshal(manifest, &listed); err != nil {
		return nil, fmt.Errorf("read manifest of the page: %w", err)
	}
	s := &static{assets: map[string]*asset{}}
	if s.index, err = fs.ReadFile(dir, "z_index.html"); err != nil {
		return nil, fmt.Errorf("read page: %w", err)
	}
	if bytes.Count(s.index, []byte(base)) != 1 {
		return nil, fmt.Errorf("read page: it does not have %s once", base)
	}
	for _, name := range listed.Assets {
		a := &asset{media: types[path.Ext(name)]}
		if a.media == "" {
			return nil, fmt.Errorf("asset %s of the page: the media type of %q is not known", name, path.Ext(name))
		}
		if a.gzip, err = fs.ReadFile(dir, "z_"+name+".gz"); err != nil {
			return nil, fmt.Errorf("read asset of the page: %w", err)
		}
		if a.brotli, err = fs.ReadFile(dir, "z_"+name+".br"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read asset of the page: %w", err)
		}
		a.tag = tag(a.gzip)
		s.assets[name] = a
	}
	return s, nil
}

// tag returns an ETag.
func tag(content []byte) string {
	sum := sha256.Sum256(content)
	return `"` + base64.RawURLEncoding.EncodeToString(sum[:12]) + `"`
}

// serve answers an asset, or the page for any other path.
func (s *static) serve(w http.ResponseWriter, r *http.Request, name string, at *place) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		writeError(w, newStatus(http.StatusMethodNotAllowed, "the path serves GET alone"))
		return
	}
	if in, ok := strings.CutPrefix(name, "assets/"); ok {
		a := s.assets[in]
		if a == nil {
			w.Header().Set("Cache-Control", "no-store")
			writeError(w, newStatus(http.StatusNotFound, "the console has no such asset"))
			return
		}
		a.serve(w, r)
		return
	}
	page := s.index
	if at.prefix != "" {
		page = bytes.Replace(page, []byte(base), []byte(`<base href="`+at.root()+`">`), 1)
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	h.Set("Vary", "X-Forwarded-Prefix")
	h.Set("Etag", tag(page))
	send(w, r, page)
}

func (a *asset) serve(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", a.media)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Vary", "Accept-Encoding")
	h.Set("Etag", a.tag)
	switch {
	case a.brotli != nil && accepts(r, "br"):
		h.Set("Content-Encoding", "br")
		h.Set("Etag", strings.TrimSuffix(a.tag, `"`)+`-br"`)
		send(w, r, a.brotli)
	case accepts(r, "gzip"):
		h.Set("Content-Encoding", "gzip")
		send(w, r, a.gzip)
	default:
		h.Set("Etag", strings.TrimSuffix(a.tag, `"`)+`-plain"`)
		plain, err := expand(a.gzip)
		if err != nil {
			writeError(w, newStatus(http.StatusInternalServerError, err.Error()))
			return
		}
		send(w, r, plain)
	}
}

// send writes a body unless the client has it.
func send(w http.ResponseWriter, r *http.Request, body []byte) {
	have := w.Header().Get("Etag")
	for known := range strings.SplitSeq(r.Header.Get("If-None-Match"), ",") {
		if strings.TrimPrefix(strings.TrimSpace(known), "W/") == have {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	w.WriteHeader(http.StatusOK)
	if r.Method != http.MethodHead {
		_, _ = w.Write(body) // the client may have left
	}
}

// accepts reports whether a client accepts an encoding of bodies.
func accepts(r *http.Request, encoding string) bool {
	for _, line := range r.Header["Accept-Encoding"] {
		for part := range strings.SplitSeq(line, ",") {
			name, q, _ := strings.Cut(part, ";")
			if strings.EqualFold(strings.TrimSpace(name), encoding) {
				q = strings.ReplaceAll(q, " ", "")
				return q != "q=0" && q != "q=0.0" && q != "q=0.00" && q != "q=0.000"
			}
		}
	}
	return false
}

func expand(compressed []byte) ([]byte, error) {
	z, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, fmt.Errorf("expand asset: %w", err)
	}
	b, err := io.ReadAll(io.LimitReader(z, 64<<20))
	if err != nil {
		return nil, fmt.Errorf("expand asset: %w", err)
	}
	return b, nil
}

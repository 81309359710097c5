// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Gen makes the OpenAPI documents of the built-in kinds: it takes those in the k8s.io/kubernetes module, drops the
// groups and versions that are not served by default, makes the protobuf form of each, and compresses all (see pack).
//
// Those of metrics.k8s.io are metrics-server's (see metrics.go).
//
// It writes into the directory z_data below the working directory: NAME.json and NAME.pb for each document, with the suffix .gz or .zst of
// their compression, and index.json, which names them with their hashes (see the type index of package openapi, whose reader it must suit).
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
	"k8s.io/kube-openapi/pkg/validation/spec"
)

type entry struct {
	File string `json:"file"`
	Hash string `json:"hash"`
}

type index struct {
	V3 map[string]entry `json:"v3"`
	V2 entry            `json:"v2"`
	// Definitions and Paths are the offsets of the closing braces of these objects in the uncompressed v2 JSON.
	Definitions int `json:"definitions"`
	Paths       int `json:"paths"`
	// Parameters are the names of the parameters that operations of v2 share, by their JSON with sorted keys.
	Parameters map[string]string `json:"parameters"`
	// V2Parts are the files with the additions to V2 of versions that are not served by default, by path.
	V2Parts map[string]string `json:"v2parts"`
}

// preview matches versions that are not served by default.
var preview = regexp.MustCompile(`^v\d+(alpha|beta)\d+$`)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run() error {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return fmt.Errorf("find module: %w", err)
	}
	module := strings.TrimSpace(string(out))
	dir := filepath.Join(module, "api", "openapi-spec")
	es, err := readEnums(module)
	if err != nil {
		return err
	}
	if err := os.RemoveAll("z_data"); err != nil {
		return err
	}
	if err := os.Mkdir("z_data", 0o755); err != nil {
		return err
	}
	ix := index{V3: map[string]entry{}}
	served, err := v3(dir, es, &ix)
	if err != nil {
		return err
	}
	if err := v2(dir, es, served, &ix); err != nil {
		return err
	}
	if err := shared(dir); err != nil {
		return err
	}
	if err := pack(); err != nil {
		return err
	}
	b, err := json.MarshalIndent(ix, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile("z_data/index.json", append(b, '\n'), 0o644)
}

// v3 writes one document per group version, including previews, and returns the prefixes of the paths that are served
// by default.
func v3(dir string, es enums, ix *index) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(dir, "v3", "*.json"))
	if err != nil {
		return nil, err
	}
	served := map[string]bool{}
	for _, f := range files {
		if p := pathOf(f); strings.Count(p, "/") == 2 && !preview.MatchString(filepath.Base(p)) {
			served[p], served[filepath.Dir(p)] = true, true
		} else if !strings.HasPrefix(p, "apis/") && p != "logs" {
			served[p] = true
		}
	}
	for _, f := range files {
		p := pathOf(f)
		if p == "logs" { // served only with --enable-logs-handler
			continue
		}
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		doc, err := serveV3(raw, es)
		if err != nil {
			return nil, fmt.Errorf("make %s: %w", f, err)
		}
		parsed, err := openapi_v3.ParseDocument(doc)
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", f, err)
		}
		e, err := write("v3_"+strings.ReplaceAll(p, "/", "_"), doc, parsed)
		if err != nil {
			return nil, err
		}
		ix.V3[p] = e
	}
	return served, nil
}

// pathOf returns the path that a file documents: apis/apps/v1 for apis__apps__v1_openapi.json.
func pathOf(file string) string {
	p := strings.TrimSuffix(filepath.Base(file), "_openapi.json")
	return strings.ReplaceAll(p, "__", "/")
}

// v2 writes the single document of all groups.
func v2(dir string, es enums, served map[string]bool, ix *index) error {
	raw, err := os.ReadFile(filepath.Join(dir, "swagger.json"))
	if err != nil {
		return err
	}
	doc, err := serveV2(raw, es, func(p string) bool { return isServed(p, served) })
	if err != nil {
		return fmt.Errorf("make swagger: %w", err)
	}
	parts := map[string][]byte{}
	for name, v := range map[string]any{"paths": doc.Paths, "definitions": doc.Definitions} {
		if parts[name], err = plain(v); err != nil {
			return err
		}
	}
	b, err := plain(doc)
	if err != nil {
		return err
	}
	if ix.Paths, err = end(b, "paths", parts["paths"]); err != nil {
		return err
	}
	if ix.Definitions, err = end(b, "definitions", parts["definitions"]); err != nil {
		return err
	}
	ix.Parameters = map[string]string{}
	for name, p := range doc.Parameters {
		v, err := json.Marshal(p)
		if err != nil {
			return err
		}
		ix.Parameters[canonical(v)] = name
	}
	parsed, err := openapi_v2.ParseDocument(b)
	if err != nil {
		return fmt.Errorf("parse swagger: %w", err)
	}
	if ix.V2, err = write("v2", b, parsed); err != nil {
		return err
	}
	if err := previews(raw, es, doc, ix); err != nil {
		return err
	}
	return metrics(doc, ix)
}

// previews writes the additions to the v2 document of each version that is not served by default, and of each group
// without other versions.
func previews(raw []byte, es enums, base *spec.Swagger, ix *index) error {
	ix.V2Parts = map[string]string{}
	written := map[string]bool{}
	for _, p := range slices.Sorted(maps.Keys(ix.V3)) {
		prefix := "/" + p + "/"
		if !strings.HasPrefix(p, "apis/") {
			continue
		}
		if _, ok := base.Paths.Paths[prefix]; ok {
			continue
		}
		version := strings.Count(p, "/") == 2
		doc, err := serveV2(raw, es, func(path string) bool { return path == prefix || version && strings.HasPrefix(path, prefix) })
		if err != nil {
			return fmt.Errorf("make v2 of %s: %w", p, err)
		}
		for name := range base.Definitions {
			delete(doc.Definitions, name)
		}
		for name := range doc.Definitions {
			if written[name] {
				return fmt.Errorf("definition %s belongs to two versions", name)
			}
			written[name] = true
		}
		if err := ix.writePart(p, doc.Paths, doc.Definitions); err != nil {
			return err
		}
	}
	return nil
}

// writePart writes the paths and definitions that v2 has more with a group or version.
func (ix *index) writePart(prefix string, paths, definitions any) error {
	b, err := plain(map[string]any{"paths": paths, "definitions": definitions})
	if err != nil {
		return err
	}
	packed, err := compress(b)
	if err != nil {
		return err
	}
	file := "v2_" + strings.ReplaceAll(prefix, "/", "_") + ".json"
	if err := os.WriteFile(filepath.Join("z_data", file+".gz"), packed, 0o644); err != nil {
		return err
	}
	ix.V2Parts[prefix] = file
	return nil
}

// plain encodes JSON without escaping <, > and &, as kube-apiserver does for v2 but not for v3.
func plain(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), err
}

// end returns the offset of the closing brace of an object in a document.
func end(doc []byte, name string, object []byte) (int, error) {
	i := bytes.Index(doc, append([]byte(strconv.Quote(name)+":"), object...))
	if i < 0 {
		return 0, fmt.Errorf("%s not found in document", name)
	}
	return i + len(name) + 3 + len(object) - 1, nil
}

// canonical returns JSON with sorted keys.
func canonical(b []byte) string {
	var v any
	if err := json.Unmarshal(b, &v); err != nil {
		panic(err) // it was just encoded
	}
	b, _ = json.Marshal(v)
	return string(b)
}

func isServed(p string, served map[string]bool) bool {
	parts := strings.Split(strings.Trim(p, "/"), "/")
	for n := min(3, len(parts)); n > 0; n-- {
		key := strings.Join(parts[:n], "/")
		if served[key] {
			return true
		}
		if n == 3 && parts[0] == "apis" {
			return false
		}
		if n == 2 && parts[0] == "apis" && len(parts) == 2 {
			return false
		}
	}
	return !strings.HasPrefix(p, "/apis/") && !strings.HasPrefix(p, "/logs/")
}

// write stores a document in both forms; its hash is that of the JSON.
func write(name string, doc []byte, parsed proto.Message) (entry, error) {
	pb, err := proto.MarshalOptions{Deterministic: true}.Marshal(parsed)
	if err != nil {
		return entry{}, fmt.Errorf("encode %s: %w", name, err)
	}
	for suffix, data := range map[string][]byte{".json.gz": doc, ".pb.gz": pb} {
		packed, err := compress(data)
		if err != nil {
			return entry{}, err
		}
		if err := os.WriteFile(filepath.Join("z_data", name+suffix), packed, 0o644); err != nil {
			return entry{}, err
		}
	}
	return entry{File: name, Hash: fmt.Sprintf("%X", sha512.Sum512(doc))}, nil
}

func compress(b []byte) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(b); err != nil {
		return nil, err
	}
	err = z.Close()
	return out.Bytes(), err
}

// shared writes the v3 schemas that documents of custom kinds refer to.
func shared(dir string) error {
	z, err := os.ReadFile("z_data/v3_apis_apps_v1.json.gz")
	if err != nil {
		return err
	}
	r, err := gzip.NewReader(bytes.NewReader(z))
	if err != nil {
		return err
	}
	var doc struct {
		Components struct {
			Schemas map[string]json.RawMessage
		}
	}
	if err := json.NewDecoder(r).Decode(&doc); err != nil {
		return fmt.Errorf("parse apps/v1: %w", err)
	}
	out := map[string]json.RawMessage{}
	for name, s := range doc.Components.Schemas {
		if strings.HasPrefix(name, "io.k8s.apimachinery.pkg.apis.meta.v1.") || strings.HasPrefix(name, "io.k8s.api.autoscaling.v1.Scale") {
			var b bytes.Buffer
			if err := json.Compact(&b, s); err != nil {
				return err
			}
			out[name] = b.Bytes()
		}
	}
	if err := deleteOptions(dir, out); err != nil {
		return err
	}
	b, err := json.Marshal(out)
	if err != nil {
		return err
	}
	packed, err := compress(b)
	if err != nil {
		return err
	}
	return os.WriteFile("z_data/shared.json.gz", packed, 0o644)
}

// deleteOptions sets the group versions of DeleteOptions to those that client-go knows, as kube-apiserver does in
// documents of custom kinds.
func deleteOptions(dir string, schemas map[string]json.RawMessage) error {
	const name, extension = "io.k8s.apimachinery.pkg.apis.meta.v1.DeleteOptions", "x-kubernetes-group-version-kind"
	raw, err := os.ReadFile(filepath.Join(dir, "swagger.json"))
	if err != nil {
		return err
	}
	var doc struct {
		Definitions map[string]map[string]json.RawMessage
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		return fmt.Errorf("parse swagger: %w", err)
	}
	var kinds, kept []struct {
		Group   string `json:"group"`
		Kind    string `json:"kind"`
		Version string `json:"version"`
	}
	if err := json.Unmarshal(doc.Definitions[name][extension], &kinds); err != nil {
		return fmt.Errorf("parse kinds of DeleteOptions: %w", err)
	}
	for _, k := range kinds {
		switch k.Group {
		case "admission.k8s.io", "apiextensions.k8s.io", "apiregistration.k8s.io", "imagepolicy.k8s.io":
		default:
			kept = append(kept, k)
		}
	}
	var s map[string]json.RawMessage
	if err := json.Unmarshal(schemas[name], &s); err != nil {
		return fmt.Errorf("parse DeleteOptions: %w", err)
	}
	if s[extension], err = json.Marshal(kept); err != nil {
		return err
	}
	schemas[name], err = json.Marshal(s)
	return err
}

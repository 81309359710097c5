// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Gen makes the OpenAPI documents of the built-in kinds: it takes those that the k8s.io/kubernetes module carries, drops the groups
// and versions that are not served by default, makes the protobuf form of each, and compresses all.
//
// It writes into the directory z_data below the working directory: NAME.json.gz and NAME.pb.gz for each document, and index.json,
// which names them with their hashes (see the type index of package openapi, whose reader it must suit).
package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	openapi_v2 "github.com/google/gnostic-models/openapiv2"
	openapi_v3 "github.com/google/gnostic-models/openapiv3"
	"google.golang.org/protobuf/proto"
)

type entry struct {
	File string `json:"file"`
	Hash string `json:"hash"`
}

type index struct {
	V3 map[string]entry `json:"v3"`
	V2 entry            `json:"v2"`
	// Definitions and Paths are where, in the uncompressed v2 JSON, those objects end: the offsets of their closing braces.
	Definitions int `json:"definitions"`
	Paths       int `json:"paths"`
}

// preview is a version that is not served by default.
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
	dir := filepath.Join(strings.TrimSpace(string(out)), "api", "openapi-spec")
	if err := os.RemoveAll("z_data"); err != nil {
		return err
	}
	if err := os.Mkdir("z_data", 0o755); err != nil {
		return err
	}
	ix := index{V3: map[string]entry{}}
	served, err := v3(dir, &ix)
	if err != nil {
		return err
	}
	if err := v2(dir, served, &ix); err != nil {
		return err
	}
	if err := shared(dir); err != nil {
		return err
	}
	b, err := json.MarshalIndent(ix, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile("z_data/index.json", append(b, '\n'), 0o644)
}

// v3 writes a document a group version, and returns the paths' prefixes that are served.
func v3(dir string, ix *index) (map[string]bool, error) {
	files, err := filepath.Glob(filepath.Join(dir, "v3", "*.json"))
	if err != nil {
		return nil, err
	}
	served := map[string]bool{}
	groups := map[string]bool{} // with a served version
	for _, f := range files {
		if p := pathOf(f); strings.Count(p, "/") == 2 && !preview.MatchString(filepath.Base(p)) {
			groups[filepath.Dir(p)] = true
		}
	}
	for _, f := range files {
		p := pathOf(f)
		isGroup := strings.HasPrefix(p, "apis/") && strings.Count(p, "/") == 1
		if strings.HasPrefix(p, "apis/") && preview.MatchString(filepath.Base(p)) || isGroup && !groups[p] {
			continue
		}
		served[p] = true
		raw, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		var doc bytes.Buffer
		if err := json.Compact(&doc, raw); err != nil {
			return nil, fmt.Errorf("compact %s: %w", f, err)
		}
		parsed, err := openapi_v3.ParseDocument(doc.Bytes())
		if err != nil {
			return nil, fmt.Errorf("parse %s: %w", f, err)
		}
		e, err := write("v3_"+strings.ReplaceAll(p, "/", "_"), doc.Bytes(), parsed)
		if err != nil {
			return nil, err
		}
		ix.V3[p] = e
	}
	return served, nil
}

// pathOf is the path that a file documents: apis/apps/v1 of apis__apps__v1_openapi.json.
func pathOf(file string) string {
	p := strings.TrimSuffix(filepath.Base(file), "_openapi.json")
	return strings.ReplaceAll(p, "__", "/")
}

// v2 writes the one document of all groups.
func v2(dir string, served map[string]bool, ix *index) error {
	raw, err := os.ReadFile(filepath.Join(dir, "swagger.json"))
	if err != nil {
		return err
	}
	var doc map[string]json.RawMessage
	if err := json.Unmarshal(raw, &doc); err != nil {
		return fmt.Errorf("parse swagger: %w", err)
	}
	var paths, definitions map[string]json.RawMessage
	if err := json.Unmarshal(doc["paths"], &paths); err != nil {
		return fmt.Errorf("parse paths: %w", err)
	}
	if err := json.Unmarshal(doc["definitions"], &definitions); err != nil {
		return fmt.Errorf("parse definitions: %w", err)
	}
	var kept [][]byte
	for p, v := range paths {
		if !isServed(p, served) {
			delete(paths, p)
			continue
		}
		kept = append(kept, v)
	}
	// Definitions are kept that something served refers to.
	ref := regexp.MustCompile(`"#/definitions/([^"]+)"`)
	wanted := map[string]bool{}
	for len(kept) > 0 {
		last := kept[len(kept)-1]
		kept = kept[:len(kept)-1]
		for _, m := range ref.FindAllSubmatch(last, -1) {
			if name := string(m[1]); !wanted[name] {
				wanted[name] = true
				kept = append(kept, definitions[name])
			}
		}
	}
	for name := range definitions {
		if !wanted[name] {
			delete(definitions, name)
		}
	}
	d, err := json.Marshal(definitions)
	if err != nil {
		return err
	}
	p, err := json.Marshal(paths)
	if err != nil {
		return err
	}
	delete(doc, "definitions")
	delete(doc, "paths")
	rest, err := json.Marshal(doc)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	b.WriteString(`{"definitions":`)
	b.Write(d)
	ix.Definitions = b.Len() - 1
	b.WriteString(`,"paths":`)
	b.Write(p)
	ix.Paths = b.Len() - 1
	b.WriteByte(',')
	b.Write(rest[1:])
	parsed, err := openapi_v2.ParseDocument(b.Bytes())
	if err != nil {
		return fmt.Errorf("parse swagger: %w", err)
	}
	ix.V2, err = write("v2", b.Bytes(), parsed)
	return err
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
	return !strings.HasPrefix(p, "/apis/")
}

// write stores a document in both forms; its hash is that of the JSON.
func write(name string, doc []byte, parsed proto.Message) (entry, error) {
	pb, err := proto.MarshalOptions{Deterministic: true}.Marshal(parsed)
	if err != nil {
		return entry{}, fmt.Errorf("encode %s: %w", name, err)
	}
	for suffix, data := range map[string][]byte{".json.gz": doc, ".pb.gz": pb} {
		var b bytes.Buffer
		z, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
		if err != nil {
			return entry{}, err
		}
		if _, err := z.Write(data); err != nil {
			return entry{}, err
		}
		if err := z.Close(); err != nil {
			return entry{}, err
		}
		if err := os.WriteFile(filepath.Join("z_data", name+suffix), b.Bytes(), 0o644); err != nil {
			return entry{}, err
		}
	}
	return entry{File: name, Hash: fmt.Sprintf("%X", sha512.Sum512(doc))}, nil
}

// shared writes the v3 schemas that the documents of custom kinds refer to.
func shared(dir string) error {
	raw, err := os.ReadFile(filepath.Join(dir, "v3", "apis__apps__v1_openapi.json"))
	if err != nil {
		return err
	}
	var doc struct {
		Components struct {
			Schemas map[string]json.RawMessage
		}
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
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
	var z bytes.Buffer
	w, err := gzip.NewWriterLevel(&z, gzip.BestCompression)
	if err != nil {
		return err
	}
	if _, err := w.Write(b); err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile("z_data/shared.json.gz", z.Bytes(), 0o644)
}

// deleteOptions gives DeleteOptions the group versions that client-go knows, as kube-apiserver does in documents of custom kinds.
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

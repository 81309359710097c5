// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package openapi

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"sync"

	fastgzip "github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
)

//go:embed z_data
var data embed.FS

// static is the result of go generate.
type static struct {
	V3 map[string]struct{ File, Hash string } // by path: apis/apps/v1
	V2 struct{ File, Hash string }
	// Definitions and Paths are the offsets of the closing braces of these objects in the JSON of V2.
	Definitions, Paths int
	// Parameters are the names of the parameters that operations of v2 share, by their JSON with sorted keys.
	Parameters map[string]string
	// V2Parts are the files with the additions to V2 of versions that are not served by default, by path.
	V2Parts map[string]string

	// schemas returns the schemas that documents of custom kinds share, by name.
	schemas func() (map[string]json.RawMessage, error)
}

func readStatic() (*static, error) {
	b, err := data.ReadFile("z_data/index.json")
	if err != nil {
		return nil, fmt.Errorf("read index: %w", err)
	}
	s := &static{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("parse index: %w", err)
	}
	s.schemas = sync.OnceValues(func() (map[string]json.RawMessage, error) {
		b, err := text("shared.json")
		if err != nil {
			return nil, err
		}
		var out map[string]json.RawMessage
		if err := json.Unmarshal(b, &out); err != nil {
			return nil, fmt.Errorf("parse shared schemas: %w", err)
		}
		return out, nil
	})
	return s, nil
}

// preview returns the addition to the v2 document of a version that is not served by default.
func preview(file string) (*addition, error) {
	b, err := text(file)
	if err != nil {
		return nil, err
	}
	var parts struct{ Paths, Definitions json.RawMessage }
	if err := json.Unmarshal(b, &parts); err != nil {
		return nil, fmt.Errorf("parse preview: %w", err)
	}
	return &addition{paths: parts.Paths, definitions: parts.Definitions}, nil
}

// embedded returns an embedded document.
func embedded(file, hash string) *document {
	read := func(suffix string) func() ([]byte, error) {
		return func() ([]byte, error) { return zipped(file + suffix) }
	}
	return &document{hash: func() (string, error) { return hash, nil }, json: read(".json"), protobuf: read(".pb")}
}

// base is the document whose text is the dictionary of those that are compressed as .zst, in the same form (see gen).
const base = "v3_api_v1"

// zipped returns an embedded file as gzip compresses it.
func zipped(file string) ([]byte, error) {
	if z, err := data.ReadFile("z_data/" + file + ".gz"); err == nil {
		return z, nil
	}
	b, err := text(file)
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w, err := fastgzip.NewWriterLevel(&out, fastgzip.BestSpeed)
	if err != nil {
		return nil, fmt.Errorf("compress document: %w", err)
	}
	if _, err := w.Write(b); err != nil {
		return nil, fmt.Errorf("compress document: %w", err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("compress document: %w", err)
	}
	return out.Bytes(), nil
}

// text returns an embedded file uncompressed.
func text(file string) ([]byte, error) {
	if z, err := data.ReadFile("z_data/" + file + ".gz"); err == nil {
		return inflate(z)
	}
	z, err := data.ReadFile("z_data/" + file + ".zst")
	if err != nil {
		return nil, fmt.Errorf("read document: %w", err)
	}
	dictionary, err := text(base + path.Ext(file))
	if err != nil {
		return nil, err
	}
	r, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderDictRaw(1, dictionary))
	if err != nil {
		return nil, fmt.Errorf("decompress document: %w", err)
	}
	defer r.Close()
	b, err := r.DecodeAll(z, nil)
	if err != nil {
		return nil, fmt.Errorf("decompress document: %w", err)
	}
	return b, nil
}

// document is one document in compressed forms.
type document struct {
	hash           func() (string, error)
	json, protobuf func() ([]byte, error)
}

func inflate(z []byte) ([]byte, error) {
	r, err := gzip.NewReader(bytes.NewReader(z))
	if err != nil {
		return nil, fmt.Errorf("decompress document: %w", err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("decompress document: %w", err)
	}
	return b, nil
}

func deflate(b []byte) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if _, err := z.Write(b); err != nil {
		return nil, fmt.Errorf("compress document: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("compress document: %w", err)
	}
	return out.Bytes(), nil
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/klauspost/compress/zstd"
)

// base is the document whose text is the dictionary of the others: it has the schemas of metadata and pods, which most others repeat.
const base = "v3_api_v1"

// pack compresses documents again, with the text of the core group's as their dictionary: they take a third then. Two stay as they are:
// base itself, and v2, which is large and is sent as it is stored.
func pack() error {
	for _, form := range []string{".json", ".pb"} {
		dictionary, err := unzip(base + form + ".gz")
		if err != nil {
			return err
		}
		w, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedBestCompression), zstd.WithEncoderConcurrency(1),
			zstd.WithWindowSize(8<<20), zstd.WithEncoderDictRaw(1, dictionary))
		if err != nil {
			return fmt.Errorf("make encoder: %w", err)
		}
		files, err := filepath.Glob("z_data/v*_*" + form + ".gz")
		if err != nil {
			return err
		}
		for _, file := range files {
			name := filepath.Base(file)
			if strings.HasPrefix(name, base+".") {
				continue
			}
			doc, err := unzip(name)
			if err != nil {
				return err
			}
			if err := os.WriteFile(strings.TrimSuffix(file, ".gz")+".zst", w.EncodeAll(doc, nil), 0o644); err != nil {
				return err
			}
			if err := os.Remove(file); err != nil {
				return err
			}
		}
	}
	return nil
}

func unzip(name string) ([]byte, error) {
	z, err := os.ReadFile(filepath.Join("z_data", name))
	if err != nil {
		return nil, err
	}
	r, err := gzip.NewReader(bytes.NewReader(z))
	if err != nil {
		return nil, fmt.Errorf("decompress %s: %w", name, err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("decompress %s: %w", name, err)
	}
	return b, nil
}

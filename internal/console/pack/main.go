// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command pack makes z_dist of what the page's build wrote: it compresses the assets, and copies the rest under names with z_. Go
// compresses them, as its output depends on its version alone; that of Node.js also depends on the processor.
package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// manifest lists the assets of the page, and those that the browser loads at first.
type manifest struct {
	Assets  []string `json:"assets"`
	Initial []string `json:"initial"`
	Sources string   `json:"sources"` // a hash of what the build reads
}

func main() {
	if err := pack("web/out", "z_dist"); err != nil {
		fmt.Fprintf(os.Stderr, "pack: %v\n", err)
		os.Exit(1)
	}
}

func pack(from, to string) error {
	raw, err := os.ReadFile(filepath.Join(from, "manifest.json"))
	if err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	var m manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return fmt.Errorf("read manifest: %w", err)
	}
	if err := os.RemoveAll(to); err != nil {
		return fmt.Errorf("remove old page: %w", err)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	for _, name := range []string{"manifest.json", "index.html", "licences.txt"} {
		if err := write(from, name, filepath.Join(to, "z_"+name), func(b []byte) ([]byte, error) { return b, nil }); err != nil {
			return err
		}
	}
	for _, name := range m.Assets {
		if err := write(from, name, filepath.Join(to, "z_"+name+".gz"), compress); err != nil {
			return err
		}
	}
	return nil
}

// write writes what change makes of a file.
func write(from, name, to string, change func([]byte) ([]byte, error)) error {
	b, err := os.ReadFile(filepath.Join(from, name))
	if err != nil {
		return fmt.Errorf("read built file: %w", err)
	}
	if b, err = change(b); err != nil {
		return fmt.Errorf("compress %s: %w", name, err)
	}
	if err := os.WriteFile(to, b, 0o644); err != nil {
		return fmt.Errorf("write file of the page: %w", err)
	}
	return nil
}

func compress(b []byte) ([]byte, error) {
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, fmt.Errorf("make compressor: %w", err)
	}
	if _, err := z.Write(b); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	if err := z.Close(); err != nil {
		return nil, fmt.Errorf("compress: %w", err)
	}
	return out.Bytes(), nil
}

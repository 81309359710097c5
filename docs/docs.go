// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package docs embeds the guides and the records of decisions, so that the program shows those of its own version.
package docs

import (
	"bytes"
	"compress/gzip"
	"embed"
	"fmt"
	"io"
	"io/fs"
)

//go:generate go run -tags grpcnotrace ../scripts/reference -dir reference

//go:embed *.md decisions/*.md points/*.md reference/*.md tutorials/*.md
var embedded embed.FS

// Files are the guides, and in folders the tutorials, the pages of extension points, the generated reference and the decisions. All are
// Markdown.
var Files = texts{embedded}

// texts are embedded files, of which the program that `make build` makes has the compressed ones: see scripts/overlay/make.
type texts struct{ embed.FS }

// compressed is how such a file begins. Markdown does not.
const compressed = "\x1f\x8b"

// ReadFile reads a whole file.
func (t texts) ReadFile(name string) ([]byte, error) {
	b, err := t.FS.ReadFile(name)
	if err != nil || !bytes.HasPrefix(b, []byte(compressed)) {
		return b, err
	}
	r, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: err}
	}
	if b, err = io.ReadAll(r); err != nil {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("decompress: %w", err)}
	}
	return b, nil
}

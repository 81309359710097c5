// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package docs embeds the guides and the records of decisions, so that the program shows those of its own version.
package docs

import "embed"

//go:generate go run -tags grpcnotrace ../scripts/reference -dir reference

// Files are the guides, and in folders the tutorials, the pages of extension points, the generated reference and the decisions. All are
// Markdown.
//
//go:embed *.md decisions/*.md points/*.md reference/*.md tutorials/*.md
var Files embed.FS

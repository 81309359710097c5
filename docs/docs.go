// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package docs embeds the guides and the records of decisions, so that the program shows those of its own version.
package docs

import "embed"

//go:generate go run -tags grpcnotrace ../scripts/reference -dir reference

// Files are the guides, the decisions in the folder decisions, and the generated reference in the folder reference, as Markdown.
//
//go:embed *.md decisions/*.md reference/*.md
var Files embed.FS

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package markup escapes clients' input in plain-text responses, so that no browser interprets it as HTML.
package markup

import "strings"

var escapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// Escape escapes the characters that begin tags and entities. It does not escape quotes, as in kube-apiserver's
// responses.
func Escape(text string) string { return escapes.Replace(text) }

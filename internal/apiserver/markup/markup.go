// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package markup escapes what clients sent before it goes into a plain answer, so that no browser reads it as HTML.
package markup

import "strings"

var escapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// Escape escapes the characters that begin tags and entities; quotes stay, as in kube-apiserver's answers.
func Escape(text string) string { return escapes.Replace(text) }

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package imagecredentials

import (
	"regexp"
	"strings"
)

// mostStderr is the maximum length of a program's standard error in events and logs, in bytes.
const mostStderr = 400

const redacted = "[redacted]"

// secretName matches names of variables whose values are secret.
var secretName = regexp.MustCompile(`(?i)(secret|token|passw|credential|key)`)

// What looks like a secret in a text. The first group, if any, stays.
var secretShapes = []*regexp.Regexp{
	// A URL's user and password.
	regexp.MustCompile(`(://)[^/\s:@]+:[^/\s@]+`),
	// A header, and its value alone.
	regexp.MustCompile(`(?i)((?:authorization|proxy-authorization)"?\s*[:=]\s*"?)[^"\r\n]+`),
	regexp.MustCompile(`(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}`),
	// NAME=VALUE.
	regexp.MustCompile(`(?i)([a-z_-]*(?:secret|token|passw(?:or)?d|credential|api-?key)[a-z_-]*"?\s*[:=]\s*"?)[^\s",;&]+`),
	// A JSON Web Token, an access key of AWS, an access token of Google.
	regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)*`),
	regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b`),
	regexp.MustCompile(`\bya29\.[A-Za-z0-9_-]+`),
	// Anything long and random.
	regexp.MustCompile(`[A-Za-z0-9+_-]{40,}={0,2}`),
}

// redact returns the beginning of a program's standard error on one line, without the secrets and without what looks like one.
func redact(text string, secrets ...string) string {
	for _, s := range secrets {
		if len(s) > 3 {
			text = strings.ReplaceAll(text, s, redacted)
		}
	}
	for _, shape := range secretShapes {
		keep := redacted
		if shape.NumSubexp() > 0 {
			keep = "${1}" + redacted
		}
		text = shape.ReplaceAllString(text, keep)
	}
	text = strings.ToValidUTF8(strings.Join(strings.Fields(text), " "), "?")
	if len(text) > mostStderr {
		text = strings.ToValidUTF8(text[:mostStderr], "") + " ..."
	}
	return text
}

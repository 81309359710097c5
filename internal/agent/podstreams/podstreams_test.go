// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podstreams

import "testing"

// TestStreamsAreTheRuntimesOwn: the node sends streams to no other machine, whatever the runtime answers.
func TestStreamsAreTheRuntimesOwn(t *testing.T) {
	for text, want := range map[string]bool{
		"http://127.0.0.1:4711/exec/token": true,
		"http://127.1.2.3:4711/exec/token": true,
		"https://[::1]:4711/attach/token":  true,
		"http://localhost:4711/exec/token": true,

		"http://192.0.2.1:4711/exec/token":           false,
		"http://[2001:db8::1]:4711/exec/token":       false,
		"http://169.254.169.254/latest/meta-data":    false,
		"http://127.0.0.1.example.com/exec/token":    false,
		"http://localhost.example.com/exec/token":    false,
		"http://127.0.0.1@192.0.2.1:80/exec/token":   false,
		"http://0.0.0.0:4711/exec/token":             false,
		"http:///exec/token":                         false,
		"//127.0.0.1:4711/exec/token":                false,
		"ftp://127.0.0.1:4711/exec/token":            false,
		"/exec/token":                                false,
		"":                                           false,
		"http://127.0.0.1:4711\x00.example.com/exec": false,
	} {
		if u, err := ownStream(text); (err == nil) != want || err == nil && u.String() != text {
			t.Errorf("%q: %v, %v", text, u, err)
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"strings"
	"testing"
)

// TestMarked finds stored objects that may wait, and leaves out those of which only the managed fields name the annotation.
func TestMarked(t *testing.T) {
	const key = "extension.mortise.dev/initializers"
	for value, want := range map[string]bool{
		"":                                       false,
		`{"metadata":{"name":"a"}}`:              false,
		key:                                      true,
		`{"annotations":{"` + key + `":"{}"}}`:   true,
		"b\x22" + key + "\x12":                   true,
		`{"f:annotations":{"f:` + key + `":{}}}`: false,
		`{"f:` + key + `":{}}` + strings.Repeat("x", 100) + `"` + key + `":"{}"`: true,
		`{"f:` + key + `":{},"f:` + key + `":{}}`:                                false,
	} {
		if got := marked([]byte(value)); got != want {
			t.Errorf("%q: %v", value, got)
		}
	}
}

// BenchmarkMarked is what a list that hides costs for each object that does not wait: the search for the key.
func BenchmarkMarked(b *testing.B) {
	value := []byte(strings.Repeat(`{"extension":"x.example.com/initialized","e":"`, 50))
	b.SetBytes(int64(len(value)))
	for b.Loop() {
		if marked(value) {
			b.Fatal("found")
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"strings"
	"testing"
)

func TestWithTag(t *testing.T) {
	for image, want := range map[string]string{
		"busybox": "busybox:latest", "busybox:1": "busybox:1", "a/b": "a/b:latest", "example.org:5000/a": "example.org:5000/a:latest",
		"example.org:5000/a:2": "example.org:5000/a:2", "a@sha256:00": "a@sha256:00", "Example.org/a": "Example.org/a:latest",
		"Busybox": "", "": "", "a:": "", "a b": "", "A/b": "",
	} {
		got, err := withTag(image)
		if got != want || (err != nil) != (want == "") {
			t.Errorf("withTag(%q) = %q, %v, want %q", image, got, err, want)
		}
	}
}

func FuzzWithTag(f *testing.F) {
	f.Add("example.org:5000/a")
	f.Fuzz(func(t *testing.T, image string) {
		if got, err := withTag(image); err == nil && !strings.HasPrefix(got, image) {
			t.Errorf("withTag(%q) = %q", image, got)
		}
	})
}

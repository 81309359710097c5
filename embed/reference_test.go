// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"regexp"
	"strings"
	"testing"

	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/mortise-dev/mortise/docs"
	"github.com/mortise-dev/mortise/embed"
)

// TestMetricsAreInReference: each metric of a running server is in the generated reference, with its type. Those of Go's libraries are not.
func TestMetricsAreInReference(t *testing.T) {
	s := &embed.Server{Node: embed.NodeNone}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	}()
	page, err := docs.Files.ReadFile("reference/z_metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	text, err := s.Client().CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	libraries, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	ofLibraries := map[string]bool{}
	for _, f := range libraries {
		ofLibraries[f.GetName()] = true
	}
	seen := 0
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		if ofLibraries[m[1]] || strings.HasPrefix(m[1], "go_") || strings.HasPrefix(m[1], "process_") {
			continue
		}
		seen++
		if !strings.Contains(string(page), "| `"+m[1]+"` | "+m[2]+" |") {
			t.Errorf("the reference has no %s %s", m[2], m[1])
		}
	}
	if seen < 60 {
		t.Errorf("found only %d metrics", seen)
	}
}

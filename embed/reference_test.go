// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"regexp"
	"strings"
	"testing"

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
	// Go's runtime, client-go, and the registry of the Kubernetes libraries that the server links.
	ofLibraries := regexp.MustCompile(`^(go|process|promhttp|rest_client|apiserver_cel|apiserver_validation|apiserver_webhooks_x509|` +
		`apiserver_envelope_encryption|apiserver_storage_(data_key|envelope)|cardinality|(disabled|hidden|registered)_metrics)_`)
	seen := 0
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (\S+) (\S+)$`).FindAllStringSubmatch(string(text), -1) {
		if ofLibraries.MatchString(m[1]) {
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

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestReferenceIsCurrent generates the reference anew and compares it with docs/reference.
func TestReferenceIsCurrent(t *testing.T) {
	dir := t.TempDir()
	if err := run(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"z_metrics.md", "z_events.md"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		want, err := os.ReadFile(filepath.Join("../../docs/reference", name))
		if err != nil {
			t.Fatal(err)
		}
		if string(got) != string(want) {
			t.Errorf("docs/reference/%s is not what the source code gives: run make gen", name)
		}
	}
}

// TestConstantsAreFound generates the reference of a small package that writes metrics and events in all ways that the generator follows.
func TestConstantsAreFound(t *testing.T) {
	s, err := load("grpcnotrace", "./testdata/sample")
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := metricsPage(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		"| `direct_total` | counter | code | A literal. |",
		"| `sub_by_parameter` | gauge |  | By a parameter. |",
		"| `sub_by_another` | gauge |  | By another call. |",
		"| `ranged_seconds` | histogram | one, two | By a range statement. |",
		"| `computed_now` | gauge | name | Computed. |",
		"| `computed_spread` | histogram | name | By a helper. |",
	} {
		if !strings.Contains(metrics, row) {
			t.Errorf("no row %s in\n%s", row, metrics)
		}
	}
	events, err := eventsPage(s)
	if err != nil {
		t.Fatal(err)
	}
	for _, row := range []string{
		"| `Direct` | Normal | scripts/reference/testdata/sample | A literal of %s |",
		"| `Planned` | Warning | scripts/reference/testdata/sample | By a field: … |",
		"| `CalledBack` | Warning | scripts/reference/testdata/sample | By a function in a field |",
		"| `FromTable` | Warning | scripts/reference/testdata/sample | By an index: … |",
	} {
		if !strings.Contains(events, row) {
			t.Errorf("no row %s in\n%s", row, events)
		}
	}
}

// TestUnknownNameIsAnError requires an error for a metric whose name no constant gives.
func TestUnknownNameIsAnError(t *testing.T) {
	s, err := load("grpcnotrace", "./testdata/unknown")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := metricsPage(s); err == nil || !strings.Contains(err.Error(), "a metric without a name") {
		t.Errorf("metrics: %v", err)
	}
	if _, err := eventsPage(s); err == nil || !strings.Contains(err.Error(), "an event without a reason") {
		t.Errorf("events: %v", err)
	}
}

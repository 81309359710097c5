// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command reference writes the reference of metrics and events into docs/reference, from the source code that defines them:
//
//	go run ./scripts/reference
//
// It type-checks the packages of this module and follows each metric's options and each event's arguments to their constants: through
// parameters to the callers, through variables to their assignments, and through fields to the composite literals. What has no constant
// on its way, such as a text that an extension answers, is shown as "…". It fails if it cannot find a metric's name or an event's reason
// at a place that the list of exceptions does not name.
package main

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"github.com/mortise-dev/mortise/internal/durable"
)

func main() {
	dir := flag.String("dir", "docs/reference", "`DIR` to write the pages to")
	flag.Parse()
	if err := run(*dir); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func run(dir string) error {
	s, err := load("grpcnotrace", module+"internal/...", module+"extension/...", module+"store/...")
	if err != nil {
		return err
	}
	pages := map[string]func(*source) (string, error){"z_metrics.md": metricsPage, "z_events.md": eventsPage}
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // everybody may read them
		return fmt.Errorf("make directory of the reference: %w", err)
	}
	for name, page := range pages {
		text, err := page(s)
		if err != nil {
			return err
		}
		if err := durable.Write(filepath.Join(dir, name), 0o644, []byte(text)); err != nil {
			return fmt.Errorf("write reference: %w", err)
		}
	}
	return nil
}

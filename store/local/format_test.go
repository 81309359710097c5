// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/internal/golden"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/local"
	"github.com/mortise-dev/mortise/store/mvcc"
	"github.com/mortise-dev/mortise/store/storetest"
)

// TestFormat opens a store that an earlier version has written. Its files are never changed: a format that cannot read
// them is a new format, with a directory of its own beside this one.
func TestFormat(t *testing.T) {
	const from = "testdata/format1"
	options := func() local.Options {
		return local.Options{Clock: storetest.NewClock(), SegmentBytes: 1 << 10, Options: mvcc.Options{HistoryRevisions: 60}}
	}
	if golden.Update() {
		if err := os.MkdirAll(from, 0o755); err != nil {
			t.Fatal(err)
		}
		for name, content := range files(t, 1000, options()) {
			if name == "lock" {
				continue
			}
			if err := os.WriteFile(filepath.Join(from, name), content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	dir := t.TempDir()
	if err := os.CopyFS(dir, os.DirFS(from)); err != nil {
		t.Fatal(err)
	}
	e, err := local.Open(dir, options())
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	page, err := e.Range(ctx, store.Range{})
	if err != nil {
		t.Fatal(err)
	}
	var have strings.Builder
	fmt.Fprintf(&have, "revision %d, compacted %d\n", page.Revision, e.Compacted())
	for _, r := range page.Records {
		fmt.Fprintf(&have, "%s = %s at %d, created at %d", r.Key, r.Value, r.Revision, r.Created)
		if !r.Expires.IsZero() {
			fmt.Fprintf(&have, ", expires %s", r.Expires.UTC().Format(time.RFC3339))
		}
		fmt.Fprintln(&have)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	golden.Compare(t, from+".txt", have.String())
}

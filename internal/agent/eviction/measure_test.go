// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package eviction

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/stats"
)

func TestMachineIsMeasured(t *testing.T) {
	if available, ok := hardware.AvailableMemory(1 << 62); !ok || available <= 0 {
		t.Errorf("memory: %d, %v", available, ok)
	}
	if running, most, ok := (stats.Reader{}).Threads(); !ok || running <= 0 || most <= running {
		t.Errorf("processes: %d of %d, %v", running, most, ok)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(dir, "a"), filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	bytes, files := under(dir)
	if bytes < 1<<20 || bytes > 3<<19 || files != 2 {
		t.Errorf("%d bytes in %d files", bytes, files)
	}
	if bytes, files := under(filepath.Join(dir, "none")); bytes != 0 || files != 0 {
		t.Errorf("nothing: %d bytes in %d files", bytes, files)
	}
}

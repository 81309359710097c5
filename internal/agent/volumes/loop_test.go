// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
)

// The kernel's text names a file, with what it adds for one that is deleted.
func TestBacks(t *testing.T) {
	for text, want := range map[string]bool{
		"/a/b\n": true, "/a/b (deleted)\n": true, "/a/bc\n": false, "/a\n": false, "": false, "/x/a/b\n": false,
	} {
		if got := backs(text, "/a/b"); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
}

// A device is kept open by one loop device, also if that is asked for twice, until it is released.
func TestHoldDevice(t *testing.T) {
	if _, err := os.Stat(loopControl); err != nil {
		t.Skip("SKIPPED: the machine has no loop devices")
	}
	path := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	disktest.OnThread(t, func() error {
		defer func() { _ = System{}.ReleaseDevice(path) }()
		if err := errors.Join(System{}.HoldDevice(path), System{}.HoldDevice(path)); err != nil {
			return err
		}
		device, err := loopOn(blockSysFS, path)
		if err != nil || device == "" {
			return fmt.Errorf("loop device %q, %w", device, err)
		}
		if err := errors.Join(System{}.ReleaseDevice(path), System{}.ReleaseDevice(path)); err != nil {
			return err
		}
		if device, err := loopOn(blockSysFS, path); err != nil || device != "" {
			return fmt.Errorf("%s is left, %w", device, err)
		}
		return System{}.ReleaseDevice(filepath.Join(path, "none"))
	})
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package containerlog

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"
)

func TestRotateKeepsTheNewest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	begin := func() error { return os.WriteFile(path, []byte("new"), 0o600) }
	if err := begin(); err != nil {
		t.Fatal(err)
	}
	for range 7 {
		now = now.Add(time.Minute)
		if err := rotate(path, now, 5, begin); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != 5 || files[len(files)-1] != path+".20260101-000700" || files[0] != path {
		t.Errorf("files %q, %v", files, err)
	}
	broken := errors.New("the runtime is away")
	if err := rotate(path, now.Add(time.Hour), 5, func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("error %v", err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "new" {
		t.Errorf("the log has lost its name: %q, %v", text, err)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestMachineIsChecked(t *testing.T) {
	text := "Filename\tType\tSize\tUsed\tPriority\n/dev/zram0 partition 1 0 1\n/swap.img file 4 0 -2\n"
	if diff := cmp.Diff([]string{"/swap.img"}, swaps(text)); diff != "" {
		t.Error(diff)
	}
	dir := t.TempDir()
	for name, value := range map[string]string{
		"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
		"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(value+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := checkKernel(dir); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kernel/panic"), []byte("0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := checkKernel(dir); err == nil || !strings.Contains(err.Error(),
		"invalid kernel flag: kernel/panic, expected value: 10, actual value: 0") {
		t.Errorf("error %v", err)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package hardware

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReservedPages(t *testing.T) {
	root := t.TempDir()
	for name, count := range map[string]string{"hugepages-2048kB": "3\n", "hugepages-1048576kB": "1\n", "hugepages-64kB": "0\n",
		"other": "x"} {
		if err := errors.Join(os.Mkdir(filepath.Join(root, name), 0o755),
			os.WriteFile(filepath.Join(root, name, "nr_hugepages"), []byte(count), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	pages, err := reservedPages(root)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]HugePages{{64 << 10, 0}, {2 << 20, 6 << 20}, {1 << 30, 1 << 30}}, pages); diff != "" {
		t.Error(diff)
	}
	if pages, err := reservedPages(filepath.Join(root, "none")); err != nil || len(pages) > 0 {
		t.Errorf("a kernel without huge pages: %v, %v", pages, err)
	}
}

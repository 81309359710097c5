// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"testing"
)

func TestSizeClass(t *testing.T) {
	for size, want := range map[uint64]string{
		0: "N/A", 1: "0-10MB", 10 << 20: "0-10MB", 10<<20 + 1: "10MB-100MB", 101 << 20: "100MB-500MB", 1 << 30: "500MB-1GB", 1<<30 + 1: "1GB-5GB",
		6 << 30: "5GB-10GB", 11 << 30: "10GB-20GB", 21 << 30: "20GB-30GB", 31 << 30: "30GB-40GB", 41 << 30: "40GB-60GB",
		61 << 30: "60GB-100GB", 101 << 30: "GT100GB",
	} {
		if got := sizeClass(size); got != want {
			t.Errorf("%d bytes are of class %q, want %q", size, got, want)
		}
	}
}

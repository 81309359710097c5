// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUnwrittenPart(t *testing.T) {
	for line, want := range map[string]bool{
		"00400000-01a2b000 r-xp 00000000 fd:00 1234 /bin/mortise\n": true,
		"01a2b000-02a2b000 r--p 0162b000 fd:00 1234 /bin/mortise\n": true,
		"02a2b000-02a3b000 rw-p 0262b000 fd:00 1234 /bin/mortise\n": false,
		"02a3b000-02a4b000 rw-p 00000000 00:00 0 \n":                false,
		"7f0000000000-7f0000001000 r-xp 00000000 fd:00 9 /lib/c.so": false,
		"02a2b000 r-xp": false,
		"":              false,
	} {
		from, to, ok := unwrittenPart(line, "/bin/mortise")
		if ok != want || ok && to <= from {
			t.Errorf("%q: %x to %x, %v; want %v", line, from, to, ok, want)
		}
	}
}

func TestTrimMemoryLeavesTheProgramWhole(t *testing.T) {
	if err := trimMemory(); err != nil {
		t.Fatal(err)
	}
	if s := strings.Repeat("ab", 3); s != "ababab" {
		t.Errorf("after trimming, ab three times is %q", s)
	}
}

// TestMappedFilesGoAndComeBack maps a file of our own, which counts once it is read.
func TestMappedFilesGoAndComeBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mapped")
	const size = 32 << 20
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	mapping, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ, unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	before, sum := mappedFiles(), byte(0)
	for i := 0; i < size; i += os.Getpagesize() {
		sum |= mapping[i]
	}
	if after := mappedFiles(); sum != 0 || before == 0 || after < before+size/2 {
		t.Errorf("%d bytes of files were resident, %d after %d more were read", before, after, size)
	}
	if err := unix.Munmap(mapping); err != nil {
		t.Fatal(err)
	}
	if after := mappedFiles(); after > before+size/2 {
		t.Errorf("%d bytes of files were resident, %d after all", before, after)
	}
}

func FuzzUnwrittenPart(f *testing.F) {
	f.Add("00400000-01a2b000 r-xp 00000000 fd:00 1234 /bin/mortise", "/bin/mortise")
	f.Fuzz(func(t *testing.T, line, file string) {
		if from, to, ok := unwrittenPart(line, file); ok && (to <= from || !strings.Contains(line, file)) {
			t.Errorf("%q gives %x to %x", line, from, to)
		}
	})
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"

	"golang.org/x/sys/unix"
)

// trimMemory releases memory that only the start-up, or a burst of work, needed: free pages of the heap, and pages of the binary.
func trimMemory() error {
	debug.FreeOSMemory()
	return trimBinary()
}

// trimBinary releases pages of the binary that were touched. They are clean: the kernel reads them from the page cache again when they are
// needed, at the cost of a minor fault for each 64 KB; an idle server needs a fifth of them. trimBinary also disables huge pages for the
// binary: if the page cache holds the file in pieces of 2 MB, as it does after the file was written, the kernel would map such a piece for
// each byte that is read.
func trimBinary() error {
	self, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return fmt.Errorf("find binary: %w", err)
	}
	if fixed, err := needsNoLoader(self); err != nil || !fixed {
		return err
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return fmt.Errorf("read memory map: %w", err)
	}
	for line := range bytes.Lines(maps) {
		from, to, ok := unwrittenPart(string(line), self)
		if !ok {
			continue
		}
		// A kernel without huge pages does not support the advice.
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_NOHUGEPAGE); errno != 0 && errno != unix.EINVAL {
			return fmt.Errorf("have pages of the binary in small pieces: %w", errno)
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release pages of the binary: %w", errno)
		}
	}
	return nil
}

// mappedFiles returns the number of bytes of files, mostly of the binary, that are resident in the process's memory (proc(5), statm); 0 if
// it cannot be read.
func mappedFiles() uint64 {
	text, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, resident, shared uint64
	if _, err := fmt.Sscan(string(text), &size, &resident, &shared); err != nil {
		return 0
	}
	return shared * uint64(os.Getpagesize())
}

// needsNoLoader reports whether a binary is static and has a fixed address. In other binaries, the loader has written relocations to
// segments that are read-only now, and dropping those would lose the relocations.
func needsNoLoader(path string) (bool, error) {
	f, err := elf.Open(path)
	if err != nil {
		return false, fmt.Errorf("read binary: %w", err)
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC || p.Type == elf.PT_GNU_RELRO {
			return false, nil
		}
	}
	return f.Type == elf.ET_EXEC, nil
}

// unwrittenPart parses a line of /proc/PID/maps (proc(5)), and reports whether it is a part of the file that is mapped privately and
// read-only: its pages equal the file's, and may be dropped.
func unwrittenPart(line, file string) (from, to uintptr, ok bool) {
	var span, mode, offset, device string
	var inode uint64
	var path string
	if n, err := fmt.Sscan(line, &span, &mode, &offset, &device, &inode, &path); n != 6 || err != nil || path != file {
		return 0, 0, false
	}
	if mode != "r-xp" && mode != "r--p" {
		return 0, 0, false
	}
	first, last, found := bytes.Cut([]byte(span), []byte("-"))
	a, err1 := strconv.ParseUint(string(first), 16, 64)
	b, err2 := strconv.ParseUint(string(last), 16, 64)
	if !found || err1 != nil || err2 != nil || a >= b {
		return 0, 0, false
	}
	return uintptr(a), uintptr(b), true
}

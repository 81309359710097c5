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

// trimMemory gives back what only coming up needed: the heap's free pages, and the pages of the binary itself that
// initialisation has touched. The latter are clean and come from the page cache again when they are needed, which costs a
// minor fault each; a server at rest needs a fifth of them. They come in small pieces from then on: where the cache holds the
// file in pieces of 2 MB, as it does of one that was just written, the kernel would map as much for each byte that is read.
func trimMemory() error {
	debug.FreeOSMemory()
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
		// A kernel without huge pages does not know the word.
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_NOHUGEPAGE); errno != 0 && errno != unix.EINVAL {
			return fmt.Errorf("have pages of the binary in small pieces: %w", errno)
		}
		if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
			return fmt.Errorf("release pages of the binary: %w", errno)
		}
	}
	return nil
}

// mappedFiles is how many bytes of files, mostly of the binary, are resident in the process's memory (proc(5), statm); 0 where that
// cannot be read.
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

// needsNoLoader says whether a binary is static and at a fixed address. Of others, parts that cannot be written now were
// written by the loader before (relocations), and dropping those would lose them.
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

// unwrittenPart reads a line of /proc/PID/maps (proc(5)), and says whether it is a part of the file that is mapped
// privately and cannot be written: its pages are the file's own, and may be dropped.
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

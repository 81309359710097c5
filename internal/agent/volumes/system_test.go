// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/agent/volumes/disktest"
)

func FuzzBelow(f *testing.F) {
	f.Add("36 35 98:0 / /a/b\\040c rw - ext3 /dev/root rw\n37 35 98:0 / /ab rw - x y z\n")
	f.Fuzz(func(t *testing.T, text string) {
		for _, path := range below(text, "/a") {
			if !strings.HasPrefix(path, "/a/") {
				t.Errorf("%q is not below /a", path)
			}
		}
	})
}

func TestBelow(t *testing.T) {
	got := below("1 2 3 /\n1 2 3 / /a/short\n36 35 98:0 / /a/b\\040c rw - ext3 /dev/root rw\n37 35 98:0 / /ab rw - x y z\n38 35 98:0 / /a rw - x y z\n", "/a")
	if diff := cmp.Diff([]string{"/a/short", "/a/b c"}, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// Memory is mounted with the size that is asked for, or half of the machine's, and unmounted even if files are open there.
func TestSystemTmpfs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "with space")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	disktest.OnThread(t, func() error {
		var whole, bounded unix.Statfs_t
		if err := errors.Join(
			System{}.Tmpfs(dir, 0), unix.Statfs(dir, &whole), System{}.Unmount(dir), System{}.Tmpfs(dir, 1<<20), unix.Statfs(dir, &bounded),
		); err != nil {
			return err
		}
		if size := bounded.Blocks * uint64(bounded.Bsize); size != 1<<20 || whole.Blocks <= bounded.Blocks || whole.Type != unix.TMPFS_MAGIC {
			return fmt.Errorf("%d bytes, and %d blocks without a size", size, whole.Blocks)
		}
		open, err := os.Create(filepath.Join(dir, "file"))
		if err != nil {
			return err
		}
		defer open.Close()
		if mounted, err := (System{}).IsMountPoint(dir); err != nil || !mounted {
			return fmt.Errorf("mounted: %v, %w", mounted, err)
		}
		if err := (System{}).Unmount(dir); err != nil {
			return fmt.Errorf("with an open file: %w", err)
		}
		if mounted, err := (System{}).IsMountPoint(dir); err != nil || mounted {
			return fmt.Errorf("still mounted: %v, %w", mounted, err)
		}
		return nil
	})
}

// A source is mounted at its target with what is mounted below it.
func TestSystemBind(t *testing.T) {
	home := t.TempDir()
	source, target := filepath.Join(home, "source"), filepath.Join(home, "target")
	disktest.OnThread(t, func() error {
		if err := errors.Join(os.MkdirAll(source+"/inner", 0o755), os.Mkdir(target, 0o755), System{}.Tmpfs(source+"/inner", 0),
			os.WriteFile(source+"/inner/file", []byte("text"), 0o600), System{}.Bind(source, target)); err != nil {
			return err
		}
		if text, err := os.ReadFile(target + "/inner/file"); err != nil || string(text) != "text" {
			return fmt.Errorf("%q, %w", text, err)
		}
		for dir, want := range map[string]bool{target: true, source: false, source + "/inner": true, source + "/none": false} {
			if mounted, err := (System{}).IsMountPoint(dir); err != nil || mounted != want {
				return fmt.Errorf("%s is a mount point: %v, %w", dir, mounted, err)
			}
		}
		return nil
	})
}

// Mount points are told by their devices where the kernel does not tell.
func TestOtherDevice(t *testing.T) {
	home := t.TempDir()
	dir, file := filepath.Join(home, "dir"), filepath.Join(home, "file")
	disktest.OnThread(t, func() error {
		if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(file, nil, 0o600)); err != nil {
			return err
		}
		for _, want := range []bool{false, true} {
			if got, err := otherDevice(dir); err != nil || got != want {
				return fmt.Errorf("another device: %v, %w", got, err)
			}
			if err := (System{}).Tmpfs(dir, 0); err != nil {
				return err
			}
		}
		for _, ask := range []func(string) (bool, error){otherDevice, System{}.IsMountPoint} {
			if got, err := ask(filepath.Join(file, "below")); got || !errors.Is(err, unix.ENOTDIR) {
				return fmt.Errorf("below a file: %v, %w", got, err)
			}
		}
		return nil
	})
	if got, err := otherDevice(filepath.Join(home, "none")); got || !errors.Is(err, unix.ENOENT) {
		t.Errorf("what is not there: %v, %v", got, err)
	}
}

// What is not mounted, or not there, need not be unmounted. A link is not followed. All else that fails is an error.
func TestSystemUnmount(t *testing.T) {
	home := t.TempDir()
	dir, link := filepath.Join(home, "dir"), filepath.Join(home, "link")
	if err := errors.Join(os.Mkdir(dir, 0o755), os.Symlink(dir, link)); err != nil {
		t.Fatal(err)
	}
	disktest.OnThread(t, func() error {
		for _, path := range []string{dir, filepath.Join(home, "none")} {
			if err := (System{}).Unmount(path); err != nil {
				return fmt.Errorf("what is not mounted: %w", err)
			}
		}
		if err := errors.Join(System{}.Tmpfs(dir, 0), System{}.Unmount(link)); err != nil {
			return err
		}
		if mounted, err := (System{}).IsMountPoint(dir); err != nil || !mounted {
			return fmt.Errorf("a link was followed: %w", err)
		}
		if err := disktest.Drop(unix.CAP_SYS_ADMIN); err != nil {
			return err
		}
		for what, err := range map[string]error{
			"unmount": System{}.Unmount(dir), "bind": System{}.Bind(dir, home),
			"tmpfs": System{}.Tmpfs(dir, 0), "huge pages": System{}.Huge(dir, 2<<20),
		} {
			if !errors.Is(err, unix.EPERM) {
				return fmt.Errorf("%s without privileges: %w", what, err)
			}
		}
		return nil
	})
}

// The kernel's list has outer mounts before inner ones, by their plain names.
func TestSystemBelow(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounting needs root")
	}
	home := t.TempDir()
	dir := filepath.Join(home, "with space")
	outer, inner := filepath.Join(dir, "outer"), filepath.Join(dir, "outer/back\\slash")
	t.Cleanup(func() {
		if err := errors.Join(System{}.Unmount(inner), System{}.Unmount(outer)); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(os.MkdirAll(outer, 0o755), System{}.Tmpfs(outer, 0), os.Mkdir(inner, 0o755), System{}.Tmpfs(inner, 0)); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string][]string{dir: {outer, inner}, outer: {inner}, inner: nil} {
		if got, err := (System{}).Below(path); err != nil || !slices.Equal(got, want) {
			t.Errorf("below %s: %q, %v", path, got, err)
		}
	}
}

// The kernel's own calls mount a file system of huge pages and take it away.
func TestSystemHuge(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: mounting needs root")
	}
	dir := t.TempDir()
	if err := (System{}).Huge(dir, 2<<20); err != nil {
		t.Fatal(err)
	}
	mounted, err := System{}.IsMountPoint(dir)
	if err != nil || !mounted {
		t.Errorf("mounted: %v, %v", mounted, err)
	}
	if err := (System{}).Unmount(dir); err != nil {
		t.Error(err)
	}
}

// ran puts a program mount into PATH that writes down its arguments and environment, and returns what it wrote.
func ran(t *testing.T, source string, options []string) string {
	bin := t.TempDir()
	script := "#!/bin/sh\n{ for a; do echo \"arg $a\"; done; /usr/bin/env; } > " + bin + "/out\n"
	if err := os.WriteFile(filepath.Join(bin, "mount"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin)
	t.Setenv("MORTISE_TOKEN", "secret")
	if err := (System{}).Mount(t.Context(), source, "/dir", "nfs", options); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(bin, "out"))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestNFSServerIsNoOption(t *testing.T) {
	out := ran(t, "-T/etc/fstab:/a", []string{"ro"})
	if !strings.HasPrefix(out, "arg -t\narg nfs\narg -o\narg ro\narg --\narg -T/etc/fstab:/a\narg /dir\n") {
		t.Errorf("mount ran with %s", out)
	}
}

func TestMountHasACleanEnvironment(t *testing.T) {
	if out := ran(t, "a:/b", nil); strings.Contains(out, "MORTISE_TOKEN") || !strings.Contains(out, "LC_ALL=C\n") {
		t.Errorf("mount ran with %s", out)
	}
}

// TestMountSaysWhatMountSays: the program's arguments and its words are in the error, and it ends when nobody waits for it any more.
func TestMountSaysWhatMountSays(t *testing.T) {
	dir := t.TempDir()
	script := "#!/bin/sh\necho \"$@\" >> " + dir + "/asked\ncase $4 in slow:*) sleep 60;; bad:*) echo no such share >&2; exit 32;; esac\n"
	if err := os.WriteFile(filepath.Join(dir, "mount"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	if err := (System{}).Mount(t.Context(), "good:/a", "/mnt", "nfs", []string{"ro", "soft"}); err != nil {
		t.Error(err)
	}
	if asked, err := os.ReadFile(filepath.Join(dir, "asked")); err != nil || string(asked) != "-t nfs -o ro,soft -- good:/a /mnt\n" {
		t.Errorf("asked %q, %v", asked, err)
	}
	err := System{}.Mount(t.Context(), "bad:/a", "/mnt", "nfs", nil)
	if want := "mount failed: exit status 32\nMounting command: mount\nMounting arguments: -t nfs bad:/a /mnt\nOutput: no such share\n"; err == nil || err.Error() != want {
		t.Errorf("%v, want %q", err, want)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := (System{}).Mount(ctx, "slow:/a", "/mnt", "nfs", nil); err == nil {
		t.Error("it did not end")
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
)

func TestPauseIsStaticELF(t *testing.T) {
	for _, arch := range []string{"amd64", "arm64"} {
		prog, err := pauseProgram(arch)
		if err != nil {
			t.Fatal(err)
		}
		if err := static(prog); err != nil {
			t.Errorf("%s: %v", arch, err)
		}
		f, err := elf.NewFile(bytes.NewReader(prog))
		if err != nil {
			t.Fatal(err)
		}
		if got, want := f.Entry, uint64(0x400000+120); got != want {
			t.Errorf("%s: entry %#x, want %#x", arch, got, want)
		}
	}
	if _, err := pauseProgram("mips"); err == nil {
		t.Error("an unknown architecture has a program")
	}
}

func TestPauseEndsOnTerm(t *testing.T) {
	prog, err := pauseProgram(runtime.GOARCH)
	if err != nil {
		t.Skip(err)
	}
	path := filepath.Join(t.TempDir(), "pause")
	if err := os.WriteFile(path, prog, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Signal(unix.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err = cmd.Wait()
	// Before it has blocked the signal, the signal itself ends it.
	var exit *exec.ExitError
	if err != nil && (!errors.As(err, &exit) || exit.ExitCode() != -1) {
		t.Errorf("pause ended with %v", err)
	}
}

func TestStaticTellsLibraries(t *testing.T) {
	if err := static([]byte("#!/bin/sh\n")); err == nil {
		t.Error("a script is a static program")
	}
	data, err := os.ReadFile("/bin/sh")
	if err != nil {
		t.Skipf("SKIPPED: %v", err)
	}
	if f, err := elf.NewFile(bytes.NewReader(data)); err == nil && f.Section(".interp") != nil && static(data) == nil {
		t.Error("a program with an interpreter is static")
	}
}

func FuzzStatic(f *testing.F) {
	prog, err := pauseProgram("arm64")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(prog)
	f.Fuzz(func(t *testing.T, b []byte) {
		if static(b) == nil && !bytes.HasPrefix(b, []byte("\x7fELF")) {
			t.Error("a program that is none is static")
		}
	})
}

func TestBuildIsReproducible(t *testing.T) {
	var archives [2]bytes.Buffer
	for i := range archives {
		imgs, err := Build([]byte("program"), []string{"sh", "busybox", "ls"})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, n := range Names() {
			if imgs[n] == nil {
				t.Fatalf("no image %s", n)
			}
			d, err := imgs[n].Digest()
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, d.String())
			if err := WriteArchive(&archives[i], map[string]v1.Image{n: imgs[n]}); err != nil {
				t.Fatal(err)
			}
		}
		if got[2] == got[3] {
			t.Error("web:1 and web:2 are the same")
		}
	}
	if !bytes.Equal(archives[0].Bytes(), archives[1].Bytes()) {
		t.Error("two builds differ")
	}
}

func TestArchiveReadsBack(t *testing.T) {
	imgs, err := Build([]byte("program"), []string{"sh"})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := WriteArchive(&b, imgs); err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(Web2)
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.Image(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil }, &tag)
	if err != nil {
		t.Fatal(err)
	}
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	rc, err := layers[1].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer rc.Close()
	var names []string
	for r := tar.NewReader(rc); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, h.Name)
	}
	if diff := cmp.Diff([]string{"bin/web", "www/", "www/index.in"}, names); diff != "" {
		t.Error(diff)
	}
}

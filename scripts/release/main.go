// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Command release makes what a release consists of, in a directory:
//
//	mortise_VERSION_OS_ARCH.tar.gz, .zip    the binary, with manual pages, completions and the licence
//	mortise_VERSION_OS_ARCH.spdx.json       the modules in the binary (SPDX 2.3)
//	mortise_VERSION_ARCH.deb                the Debian package
//	mortise_VERSION_image.tar               the image for all processors, as an OCI layout: ctr image import
//	mortise_VERSION_image_ARCH.tar          the image for one processor: ctr image import, docker load
//	CHANGELOG.md                            docs/changes, the newest first
//	SHA256SUMS                              the checksums of the above: sha256sum -c SHA256SUMS
//
// All of it depends on the commit alone, and on the versions of Go and dpkg-deb: two clones make the same files, bit for bit. Times are
// that of the commit.
//
//	go run ./scripts/release -ldflags '-s -w' -out dist
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/mortise-dev/mortise/internal/version"
)

// all are the platforms of a release.
const all = "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64,windows/amd64"

// release is one run of the command.
type release struct {
	version, out      string
	tags, ldflags     string
	small             []string // flags of go build, see scripts/overlay/flags
	binaries          string   // directory of binaries that are built already, OS_ARCH/mortise; empty: build them
	maintainer        string   // of the Debian packages, "NAME <ADDRESS>"
	level             int      // of the Debian packages' compression, 0 to 9
	platforms         []platform
	time              time.Time // of the commit
	manual, completed string    // directories of manual pages and completions
}

// platform is an operating system and a processor in Go's words.
type platform struct{ os, arch string }

func (p platform) String() string { return p.os + "_" + p.arch }

// program returns the name of the binary.
func (p platform) program() string {
	if p.os == "windows" {
		return "mortise.exe"
	}
	return "mortise"
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("release", flag.ContinueOnError)
	r := &release{}
	f.StringVar(&r.version, "version", "", "version; empty: that of package version")
	f.StringVar(&r.out, "out", "dist", "directory to make")
	f.StringVar(&r.tags, "tags", "grpcnotrace", "build tags")
	f.StringVar(&r.ldflags, "ldflags", "-s -w", "flags of the linker")
	f.StringVar(&r.binaries, "binaries", "", "directory of binaries that are built already, as OS_ARCH/mortise")
	f.StringVar(&r.maintainer, "maintainer", unnamed, "maintainer of the Debian packages, as NAME <ADDRESS>")
	f.IntVar(&r.level, "level", 6, "level of the compression of Debian packages, 0 to 9: 0 is thirty times faster, for tests")
	platforms := f.String("platforms", all, "platforms, as OS/ARCH")
	if err := f.Parse(args); err != nil {
		return err
	}
	for p := range strings.SplitSeq(*platforms, ",") {
		system, arch, ok := strings.Cut(p, "/")
		if !ok {
			return fmt.Errorf("platform %q: want OS/ARCH", p)
		}
		r.platforms = append(r.platforms, platform{system, arch})
	}
	text, err := output(ctx, "git", "log", "-1", "--format=%ct")
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return fmt.Errorf("read the commit's time: %w", err)
	}
	r.time = time.Unix(seconds, 0).UTC()
	if err := tookOver("test/testdata/releases", version.Mortise); err != nil {
		return err
	}
	return r.make(ctx)
}

// tookOver returns an error unless the tests have what a version leaves behind on a machine: each later version is to take it over.
func tookOver(dir, version string) error {
	for _, sort := range []string{"objects", "node"} {
		if _, err := os.Stat(filepath.Join(dir, version+"-"+sort+".tar.gz")); err != nil {
			return fmt.Errorf("find the data that later releases take over: %w; scripts/release/data makes it, to be committed", err)
		}
	}
	return nil
}

// output runs a program and returns what it prints.
func output(ctx context.Context, name string, args ...string) (string, error) {
	c := exec.CommandContext(ctx, name, args...) //nolint:gosec // the programs are ours
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return "", fmt.Errorf("run %s %s: %w", name, strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// make makes all files.
func (r *release) make(ctx context.Context) error {
	if entries, err := os.ReadDir(r.out); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty", r.out)
	}
	work, err := os.MkdirTemp("", "release")
	if err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	defer os.RemoveAll(work)
	if err := os.MkdirAll(r.out, 0o755); err != nil { //nolint:gosec // everybody may read it
		return fmt.Errorf("make directory: %w", err)
	}
	own, err := host(ctx)
	if err != nil {
		return err
	}
	if r.binaries == "" {
		r.binaries = filepath.Join(work, "binaries")
		flags, err := output(ctx, "./scripts/overlay/flags", filepath.Join(work, "overlay"))
		if err != nil {
			return err
		}
		r.small = strings.Split(flags, "\n")
		built := r.platforms
		if !slices.Contains(built, own) {
			built = append(slices.Clone(built), own) // describes the others
		}
		for _, p := range built {
			if err := r.build(ctx, p); err != nil {
				return err
			}
		}
	}
	if err := r.describe(ctx, work, own); err != nil {
		return err
	}
	changes, err := readChanges("docs/changes")
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.file("CHANGELOG.md"), changes.markdown(), 0o644); err != nil { //nolint:gosec // everybody may read it
		return fmt.Errorf("write changelog: %w", err)
	}
	for _, p := range r.platforms {
		if err := errors.Join(r.archive(p), r.bill(p)); err != nil {
			return err
		}
		if p.os == "linux" {
			if err := r.debian(ctx, p, changes, work); err != nil {
				return err
			}
		}
	}
	if err := r.images(work); err != nil {
		return err
	}
	return r.sum()
}

// file returns the path of a file of the release.
func (r *release) file(name string) string { return filepath.Join(r.out, name) }

// named returns the name of a file of the release.
func (r *release) named(rest string) string { return r.file("mortise_" + r.version + "_" + rest) }

// binary returns the path of a platform's binary.
func (r *release) binary(p platform) string {
	return filepath.Join(r.binaries, p.String(), p.program())
}

// build builds a platform's binary. Paths of this machine are left out of it, and so is the linker's own identifier.
func (r *release) build(ctx context.Context, p platform) error {
	begin := time.Now()
	args := slices.Concat([]string{"build", "-buildvcs=true", "-tags", r.tags}, r.small,
		[]string{"-ldflags", r.ldflags + " -buildid=", "-o", r.binary(p), "./cmd/mortise"})
	c := exec.CommandContext(ctx, "go", args...) //nolint:gosec // the arguments are ours
	c.Env = append(os.Environ(), "GOOS="+p.os, "GOARCH="+p.arch, "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0")
	if os.Getenv("GOGC") == "" {
		c.Env = append(c.Env, "GOGC=400") // the compiler's: see scripts/compile
	}
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Run(); err != nil {
		return fmt.Errorf("build for %s: %w", p, err)
	}
	fmt.Printf("built %s in %s\n", p, time.Since(begin).Round(time.Second))
	return r.fits(p)
}

// most are the bytes that a binary has at most, where that is held. A binary that has grown beyond is a question of review: decision 24
// says what makes it large.
var most = map[platform]int64{{"linux", "amd64"}: 90_000_000}

// fits refuses a binary that is too large. A Go that takes no overlay makes larger ones.
func (r *release) fits(p platform) error {
	file, err := os.Stat(r.binary(p))
	if err != nil {
		return fmt.Errorf("find binary: %w", err)
	}
	limit, held := most[p]
	overlaid := slices.ContainsFunc(r.small, func(flag string) bool { return strings.HasPrefix(flag, "-overlay=") })
	if held && overlaid && file.Size() > limit {
		return fmt.Errorf("the binary for %s has %d bytes, more than %d", p, file.Size(), limit)
	}
	return nil
}

// host returns the platform of this machine.
func host(ctx context.Context) (platform, error) {
	said, err := output(ctx, "go", "env", "GOHOSTOS", "GOHOSTARCH")
	system, arch, _ := strings.Cut(said, "\n")
	return platform{system, arch}, err
}

// describe lets the binary of this machine's platform write its manual pages and completions, and say its version.
func (r *release) describe(ctx context.Context, work string, own platform) error {
	binary, err := filepath.Abs(r.binary(own))
	if err != nil {
		return fmt.Errorf("find binary: %w", err)
	}
	says, err := output(ctx, binary, "version")
	if err != nil {
		return err
	}
	if _, after, ok := strings.Cut(says, "+mortise."); r.version == "" && ok {
		r.version = after
	}
	if r.version == "" {
		return fmt.Errorf("the binary says that its version is %q: give -version", says)
	}
	r.manual, r.completed = filepath.Join(work, "man"), filepath.Join(work, "completions")
	if err := os.MkdirAll(r.completed, 0o755); err != nil { //nolint:gosec // everybody may read it
		return fmt.Errorf("make directory: %w", err)
	}
	if _, err := output(ctx, binary, "docs", "--man", r.manual); err != nil {
		return err
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		script, err := output(ctx, binary, "completion", shell)
		if err == nil {
			err = os.WriteFile(filepath.Join(r.completed, "mortise."+shell), []byte(script+"\n"), 0o644) //nolint:gosec // everybody may read it
		}
		if err != nil {
			return fmt.Errorf("write completion: %w", err)
		}
	}
	return nil
}

// sum writes the checksums, in the format of sha256sum.
func (r *release) sum() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return fmt.Errorf("list the release: %w", err)
	}
	var out strings.Builder
	for _, e := range entries {
		b, err := os.ReadFile(r.file(e.Name()))
		if err != nil {
			return fmt.Errorf("sum up the release: %w", err)
		}
		fmt.Fprintf(&out, "%x  %s\n", sha256.Sum256(b), e.Name())
	}
	if err := os.WriteFile(r.file("SHA256SUMS"), []byte(out.String()), 0o644); err != nil { //nolint:gosec // everybody may read it
		return fmt.Errorf("write checksums: %w", err)
	}
	return nil
}

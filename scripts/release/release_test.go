// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/zip"
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	spdx "github.com/spdx/tools-golang/json"
	"github.com/spdx/tools-golang/spdx/v2/common"
	"github.com/spdx/tools-golang/spdx/v2/v2_3"
	"github.com/spdx/tools-golang/spdxlib"

	"github.com/mortise-dev/mortise/internal/version"
)

// TestMain lets the test's own binary be the program of a release: it answers what the release asks.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "version":
			os.Stdout.WriteString("v1.37.1+mortise.9.8\n")
			return
		case "docs":
			err := os.MkdirAll(os.Args[3], 0o755)
			if err == nil {
				err = os.WriteFile(filepath.Join(os.Args[3], "mortise.1"), []byte(".TH MORTISE 1\n.SH NAME\nmortise \\- a cluster\n"), 0o644)
			}
			if err != nil {
				panic(err)
			}
			return
		case "completion":
			os.Stdout.WriteString("# completes in " + os.Args[2] + "\n")
			return
		}
	}
	os.Exit(m.Run())
}

// made makes a release of the test's own binary.
func made(t *testing.T, root string) string {
	t.Helper()
	t.Chdir(root)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"linux_amd64/mortise", "windows_amd64/mortise.exe"} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	r := &release{
		out: filepath.Join(t.TempDir(), "dist"), binaries: dir, maintainer: unnamed,
		platforms: []platform{{"linux", "amd64"}, {"windows", "amd64"}},
		time:      time.Date(2026, 11, 28, 1, 2, 3, 0, time.UTC),
	}
	if err := r.make(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := r.make(t.Context()); err == nil || !strings.Contains(err.Error(), "is not empty") {
		t.Errorf("a release in place of another: %v", err)
	}
	return r.out
}

// says runs a program and returns what it prints.
func says(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestRelease makes a release twice, in directories of other names: the files are the same, bit for bit, and their readers read them.
func TestRelease(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	first, second := made(t, root), made(t, root)
	sums, err := os.ReadFile(filepath.Join(first, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	again, err := os.ReadFile(filepath.Join(second, "SHA256SUMS"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(sums), string(again)); diff != "" {
		t.Errorf("two releases of one commit differ:\n%s", diff)
	}
	t.Chdir(first)
	says(t, "sha256sum", "--check", "--strict", "SHA256SUMS")
	var names []string
	for line := range strings.Lines(string(sums)) {
		names = append(names, strings.Fields(line)[1])
	}
	want := []string{
		"CHANGELOG.md", "mortise_9.8_amd64.deb", "mortise_9.8_image.tar", "mortise_9.8_image_amd64.tar", "mortise_9.8_linux_amd64.spdx.json",
		"mortise_9.8_linux_amd64.tar.gz", "mortise_9.8_windows_amd64.spdx.json", "mortise_9.8_windows_amd64.zip",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Errorf("files (-want +got)\n%s", diff)
	}

	for _, want := range []string{"./usr/bin/mortise", "./usr/lib/systemd/system/mortise.service", "./etc/mortise/config.yaml",
		"./usr/share/man/man1/mortise.1.gz", "./usr/share/zsh/vendor-completions/_mortise", "-rwxr-xr-x root/root"} {
		if list := says(t, "dpkg-deb", "--contents", "mortise_9.8_amd64.deb"); !strings.Contains(list, want) {
			t.Errorf("no %s in the package:\n%s", want, list)
		}
	}
	if got := says(t, "dpkg-deb", "--field", "mortise_9.8_amd64.deb", "Package", "Version", "Architecture"); got !=
		"Package: mortise\nVersion: 9.8\nArchitecture: amd64\n" {
		t.Errorf("the package is %s", got)
	}
	changelog := says(t, "sh", "-c", "dpkg-deb --fsys-tarfile mortise_9.8_amd64.deb | tar -xO ./usr/share/doc/mortise/changelog.gz | gunzip")
	if !strings.HasPrefix(changelog, "mortise (9.8) unstable;") {
		t.Errorf("the package's changelog begins with %.60q", changelog)
	}
	if list := says(t, "tar", "-tvzf", "mortise_9.8_linux_amd64.tar.gz"); !strings.Contains(list, "mortise_9.8_linux_amd64/completions/mortise.fish") {
		t.Errorf("the archive has\n%s", list)
	}
	z, err := zip.OpenReader("mortise_9.8_windows_amd64.zip")
	if err != nil {
		t.Fatal(err)
	}
	defer z.Close()
	if got := z.File[1].Name; got != "mortise_9.8_windows_amd64/mortise.exe" {
		t.Errorf("the zip file has %s", got)
	}
	lint(t, "mortise_9.8_amd64.deb")
	image(t, "mortise_9.8_image_amd64.tar")
	materials(t, "mortise_9.8_linux_amd64.spdx.json")
}

// lint has Debian's own checker examine the package. CI installs it; another machine may lack it.
func lint(t *testing.T, file string) {
	if _, err := exec.LookPath("lintian"); err != nil && os.Getenv("CI") == "" {
		t.Logf("the package was not checked: %v", err)
		return
	}
	// The package has the test's own binary, which libc is linked to where cgo is on, as the race detector wants; a released one is static.
	if info, ok := debug.ReadBuildInfo(); ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "CGO_ENABLED", Value: "1"}) {
		t.Log("the package was not checked: this test is built with cgo")
		return
	}
	if out := says(t, "lintian", "--allow-root", "--fail-on", "error,warning", file); out != "" {
		t.Errorf("lintian finds\n%s", out)
	}
}

// image reads an image as docker load does.
func image(t *testing.T, file string) {
	tag, err := name.NewTag(repository + ":9.8")
	if err != nil {
		t.Fatal(err)
	}
	i, err := tarball.ImageFromPath(file, &tag)
	if err != nil {
		t.Fatal(err)
	}
	config, err := i.ConfigFile()
	if err != nil || config.OS != "linux" || config.Architecture != "amd64" || config.Config.Entrypoint[0] != "/usr/bin/mortise" ||
		len(config.RootFS.DiffIDs) != 1 {
		t.Errorf("the image's configuration is %+v, %v", config, err)
	}
	index := says(t, "tar", "-xOf", "mortise_9.8_image.tar", "index.json")
	if !strings.Contains(index, `"io.containerd.image.name": "`+repository+`:9.8"`) {
		t.Errorf("containerd does not find the image's name in %s", index)
	}
}

// materials reads a bill of materials as SPDX's own library does: it has the modules of the binary, each of which the program depends on.
func materials(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var d v2_3.Document
	if err := spdx.ReadInto(bytes.NewReader(text), &d); err != nil {
		t.Fatal(err)
	}
	if err := spdxlib.ValidateDocument(&d); err != nil {
		t.Error(err)
	}
	if d.SPDXVersion != v2_3.Version || d.DataLicense != v2_3.DataLicense ||
		!strings.HasPrefix(d.DocumentNamespace, "https://spdx.org/spdxdocs/"+strings.TrimSuffix(file, ".spdx.json")+"-") {
		t.Errorf("the document is %s of %s, licence %s", d.SPDXVersion, d.DocumentNamespace, d.DataLicense)
	}
	if described, err := spdxlib.GetDescribedPackageIDs(&d); err != nil || len(described) != 1 || described[0] != "mortise" {
		t.Errorf("the document describes %v, %v", described, err)
	}
	seen := map[common.ElementID]bool{}
	for _, p := range d.Packages {
		if seen[p.PackageSPDXIdentifier] {
			t.Errorf("%s twice", p.PackageSPDXIdentifier)
		}
		seen[p.PackageSPDXIdentifier] = true
	}
	// The library writes what it has understood: nothing of the document is lost.
	var again bytes.Buffer
	var before, after map[string]any
	if err := spdx.Write(&d, &again); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(json.Unmarshal(text, &before), json.Unmarshal(again.Bytes(), &after)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("SPDX's library understands the document otherwise (-written +understood)\n%s", diff)
	}
	if !strings.Contains(string(text), "pkg:golang/github.com/google/go-containerregistry@v") || len(d.Relationships) != len(d.Packages) {
		t.Errorf("%d packages, %d relationships", len(d.Packages), len(d.Relationships))
	}
}

func TestItems(t *testing.T) {
	for text, want := range map[string]string{
		"One\nitem.\n":               "One item.",
		"- A\n  b.\n- C `d`.\n":      "A b.|C `d`.",
		"First.\n\nSecond,\nlong.\n": "First.|Second, long.",
		"":                           "",
	} {
		if got := strings.Join(items(text), "|"); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

func TestChangelogs(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"2026-11-20-a.md": "Old.\n", "2026-11-21-b.md": "- New and " + strings.Repeat("long ", 20) + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	c, err := readChanges(dir)
	if err != nil {
		t.Fatal(err)
	}
	got := string(c.markdown())
	if !strings.HasPrefix(got, "# Changes\n\n## 2026-11-21\n\n- New") || !strings.HasSuffix(got, "## 2026-11-20\n\n- Old.\n") {
		t.Errorf("got %s", got)
	}
	got = string(c.debian("1.2", "A <a@example.com>", time.Date(2026, 11, 28, 1, 2, 3, 0, time.UTC)))
	want := "mortise (1.2) unstable; urgency=medium\n\n  * New and long"
	if !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "\n  * Old.\n\n -- A <a@example.com>  Sat, 28 Nov 2026 01:02:03 +0000\n") {
		t.Errorf("got %s", got)
	}
	for line := range strings.Lines(got) {
		if len(line) > 80 {
			t.Errorf("%d columns: %s", len(line), line)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "x.md"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := readChanges(dir); err == nil {
		t.Error("a change without a date is taken")
	}
	if _, err := readChanges("../../docs/changes"); err != nil {
		t.Error(err)
	}
}

// TestPackagingIsComplete: the conffiles are in the package, and the scripts are shell.
func TestPackagingIsComplete(t *testing.T) {
	list, err := os.ReadFile("debian/control/conffiles")
	if err != nil {
		t.Fatal(err)
	}
	for file := range strings.Lines(string(list)) {
		if _, err := os.Stat("debian" + strings.TrimSpace(file)); err != nil {
			t.Error(err)
		}
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		says(t, "sh", "-n", "debian/control/"+script)
	}
}

// TestDataIsKept: a release is made only with the data that later ones take over.
func TestDataIsKept(t *testing.T) {
	if err := tookOver("../../test/testdata/releases", version.Mortise); err != nil {
		t.Error(err)
	}
	if err := tookOver(t.TempDir(), "9.8"); err == nil || !strings.Contains(err.Error(), "scripts/release/data") {
		t.Errorf("a release without them: %v", err)
	}
}

// TestFits: a release is refused if its binary has grown, where the flags that make it small are in use.
func TestFits(t *testing.T) {
	held := platform{"linux", "amd64"}
	dir := t.TempDir()
	r := &release{binaries: dir}
	if err := r.fits(held); err == nil {
		t.Error("no binary is small enough")
	}
	for _, p := range []platform{held, {"windows", "amd64"}} {
		if err := os.MkdirAll(filepath.Join(dir, p.String()), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(r.binary(p), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(r.binary(p), most[held]+1); err != nil { // a hole: no disk
			t.Fatal(err)
		}
	}
	if err := r.fits(held); err != nil {
		t.Errorf("without the overlay: %v", err)
	}
	r.small = []string{"-overlay=x.json"}
	if err := r.fits(held); err == nil {
		t.Error("a binary that is too large is released")
	}
	if err := r.fits(platform{"windows", "amd64"}); err != nil {
		t.Errorf("where no size is held: %v", err)
	}
	if err := os.Truncate(r.binary(held), most[held]); err != nil {
		t.Fatal(err)
	}
	if err := r.fits(held); err != nil {
		t.Error(err)
	}
}

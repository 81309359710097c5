// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"text/template"
)

// packaging are the files of the Debian package that are written by hand.
//
//go:embed debian
var packaging embed.FS

// source is where the code is.
const source = "https://github.com/mortise-dev/mortise"

// unnamed stands in the place of the Debian package's maintainer until a publisher names one. The domain exists nowhere (RFC 2606).
const unnamed = "The Mortise Authors <maintainers@mortise.example>"

// control is the package's description (deb-control(5)). Containers need other programs, which simulated nodes do without.
var control = template.Must(template.New("control").Parse(`Package: mortise
Version: {{.Version}}
Architecture: {{.Arch}}
Maintainer: {{.Maintainer}}
Installed-Size: {{.Size}}
Section: admin
Priority: optional
Homepage: {{.Homepage}}
Pre-Depends: init-system-helpers (>= 1.54~)
Recommends: containerd, containernetworking-plugins, iptables, nftables, runc
Suggests: crun
Description: Kubernetes-compatible control plane and node
 Mortise serves the API of Kubernetes and runs pods, in one program: API
 server, controllers, scheduler, node and kubectl.
 .
 The package has two services, neither of which it starts: mortise runs a
 cluster with a node on this machine, and mortise-node joins this machine to
 a cluster elsewhere. Pods keep running when a service restarts.
`))

// debian makes the package of a platform with dpkg-deb.
func (r *release) debian(ctx context.Context, p platform, c changes, work string) error {
	root := filepath.Join(work, "debian-"+p.arch)
	changelog, err := gzipped(c.debian(r.version, r.maintainer, r.time))
	if err != nil {
		return fmt.Errorf("compress changelog: %w", err)
	}
	files := []entry{{name: "usr/share/doc/mortise/changelog.gz", mode: 0o644, data: changelog}}
	if files, err = r.collect(files, p); err != nil {
		return err
	}
	var sums strings.Builder
	size := int64(0)
	for _, f := range files {
		size += (int64(len(f.data)) + 1023) / 1024
		if !strings.HasPrefix(f.name, "DEBIAN/") && !strings.HasPrefix(f.name, "etc/") {
			fmt.Fprintf(&sums, "%s  %s\n", sumMD5(f.data), f.name)
		}
	}
	var description strings.Builder
	if err := control.Execute(&description, map[string]any{
		"Version": r.version, "Arch": p.arch, "Maintainer": r.maintainer, "Homepage": source, "Size": size,
	}); err != nil {
		return fmt.Errorf("write control file: %w", err)
	}
	files = append(files, entry{name: "DEBIAN/control", mode: 0o644, data: []byte(description.String())},
		entry{name: "DEBIAN/md5sums", mode: 0o644, data: []byte(sums.String())})
	for _, f := range files {
		if err := r.place(root, f); err != nil {
			return fmt.Errorf("write file of the package: %w", err)
		}
	}
	err = filepath.WalkDir(root, func(name string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Chtimes(name, r.time, r.time)) // dpkg-deb corrects only times after SOURCE_DATE_EPOCH
	})
	if err != nil {
		return fmt.Errorf("set times of the package's files: %w", err)
	}
	// One thread: the compressed data depends on their number.
	c2 := exec.CommandContext(ctx, "dpkg-deb", "--root-owner-group", "--threads-max=1", "-Zxz", fmt.Sprintf("-z%d", r.level),
		"--build", root, r.named(p.arch+".deb")) //nolint:gosec // the arguments are ours
	c2.Env = append(os.Environ(), fmt.Sprintf("SOURCE_DATE_EPOCH=%d", r.time.Unix()))
	c2.Stderr = os.Stderr
	if err := c2.Run(); err != nil {
		return fmt.Errorf("run dpkg-deb: %w", err)
	}
	return nil
}

// collect adds the files of the package.
func (r *release) collect(files []entry, p platform) ([]entry, error) {
	binary, err := os.ReadFile(r.binary(p))
	if err != nil {
		return nil, fmt.Errorf("read binary: %w", err)
	}
	files = append(files, entry{name: "usr/bin/mortise", mode: 0o755, data: binary})
	err = fs.WalkDir(packaging, "debian", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := packaging.ReadFile(name)
		if err != nil {
			return err
		}
		e := entry{name: strings.TrimPrefix(name, "debian/"), mode: 0o644, data: data}
		if strings.HasPrefix(e.name, "control/") {
			e.name = "DEBIAN/" + strings.TrimPrefix(e.name, "control/")
			if !strings.HasSuffix(e.name, "conffiles") {
				e.mode = 0o755 // a script
			}
		}
		files = append(files, e)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read packaging: %w", err)
	}
	pages, err := os.ReadDir(r.manual)
	if err != nil {
		return nil, fmt.Errorf("list manual pages: %w", err)
	}
	for _, page := range pages {
		text, err := os.ReadFile(filepath.Join(r.manual, page.Name()))
		if err == nil {
			text, err = gzipped(text)
		}
		if err != nil {
			return nil, fmt.Errorf("compress manual page: %w", err)
		}
		files = append(files, entry{name: "usr/share/man/man1/" + page.Name() + ".gz", mode: 0o644, data: text})
	}
	for shell, name := range map[string]string{
		"bash": "usr/share/bash-completion/completions/mortise", "zsh": "usr/share/zsh/vendor-completions/_mortise",
		"fish": "usr/share/fish/vendor_completions.d/mortise.fish",
	} {
		text, err := os.ReadFile(filepath.Join(r.completed, "mortise."+shell))
		if err != nil {
			return nil, fmt.Errorf("read completion: %w", err)
		}
		files = append(files, entry{name: name, mode: 0o644, data: text})
	}
	return sorted(files), nil
}

// place writes a file of the package below its root.
func (r *release) place(root string, f entry) error {
	name := filepath.Join(root, filepath.FromSlash(f.name))
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil { //nolint:gosec // everybody may read it
		return err
	}
	if err := os.WriteFile(name, f.data, os.FileMode(f.mode)); err != nil { //nolint:gosec // modes have nine bits
		return err
	}
	// Whatever the umask is: the package has these modes.
	for dir := filepath.Dir(name); len(dir) >= len(root); dir = filepath.Dir(dir) {
		if err := os.Chmod(dir, 0o755); err != nil { //nolint:gosec // everybody may read it
			return err
		}
	}
	return os.Chmod(name, os.FileMode(f.mode)) //nolint:gosec // modes have nine bits
}

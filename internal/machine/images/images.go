// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package images builds the few small container images that a machine without a registry needs, and loads them into containerd.
//
// It builds them in memory from two programs: pause, whose instructions are in this package, and the machine's own static busybox. [Build]
// builds them, [Runtime.Load] imports the missing ones with the ctr program into the namespace k8s.io, where CRI looks for images. It
// downloads nothing.
//
//	mortise.local/pause:1     the pod sandbox
//	mortise.local/busybox:1   a shell and the usual programs; runs sh
//	mortise.local/web:1, :2   busybox httpd on port 80, with an index page that shows the version and the host's name
//
// Builds from the same busybox give the same bytes.
package images

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"sort"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// The images' names.
const (
	Pause   = "mortise.local/pause:1"
	Busybox = "mortise.local/busybox:1"
	Web1    = "mortise.local/web:1"
	Web2    = "mortise.local/web:2"
)

// Names returns the names of all images, in order.
func Names() []string { return []string{Pause, Busybox, Web1, Web2} }

// PauseLayer makes the layer of the pod sandbox's image: /pause alone.
func PauseLayer() (v1.Layer, error) {
	pause, err := pauseProgram(runtime.GOARCH)
	if err != nil {
		return nil, err
	}
	return layer([]file{{name: "pause", mode: 0o755, data: pause}})
}

// Build makes all images, by name, of a static busybox.
func Build(busybox []byte, applets []string) (map[string]v1.Image, error) {
	pauseLayer, err := PauseLayer()
	if err != nil {
		return nil, err
	}
	base, err := layer(busyboxFiles(busybox, applets))
	if err != nil {
		return nil, err
	}
	out := map[string]v1.Image{}
	if out[Pause], err = image(v1.Config{Entrypoint: []string{"/pause"}}, pauseLayer); err != nil {
		return nil, err
	}
	env := []string{"PATH=/bin:/sbin:/usr/bin:/usr/sbin"}
	if out[Busybox], err = image(v1.Config{Env: env, Cmd: []string{"sh"}}, base); err != nil {
		return nil, err
	}
	for tag, version := range map[string]string{Web1: "1", Web2: "2"} {
		content, err := layer(webFiles(version))
		if err != nil {
			return nil, err
		}
		out[tag], err = image(v1.Config{
			Env:          append(env, "VERSION="+version),
			Entrypoint:   []string{"/bin/web"},
			ExposedPorts: map[string]struct{}{"80/tcp": {}},
		}, base, content)
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

// webScript runs httpd as its child, since a first process that does not handle SIGTERM would never receive it. It ends when httpd does.
const webScript = `#!/bin/sh
sed "s/HOST/$(hostname)/" /www/index.in > /www/index.html
httpd -f -vv -p "${PORT:-80}" -h /www &
trap 'kill $!; exit 0' TERM INT
wait $!
`

func webFiles(version string) []file {
	page := "<!doctype html>\n<title>Welcome to Mortise!</title>\n<h1>Welcome to Mortise!</h1>\n" +
		"<p>web version " + version + " on HOST</p>\n"
	return []file{
		{name: "bin/web", mode: 0o755, data: []byte(webScript)},
		{name: "www/", mode: 0o777},
		{name: "www/index.in", mode: 0o644, data: []byte(page)},
	}
}

func busyboxFiles(busybox []byte, applets []string) []file {
	files := []file{
		{name: "bin/", mode: 0o755},
		{name: "bin/busybox", mode: 0o755, data: busybox},
		{name: "dev/", mode: 0o755},
		{name: "etc/", mode: 0o755},
		{name: "etc/group", mode: 0o644, data: []byte("root:x:0:\nnogroup:x:65534:\n")},
		{name: "etc/passwd", mode: 0o644, data: []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		{name: "proc/", mode: 0o555},
		{name: "root/", mode: 0o700},
		{name: "sys/", mode: 0o555},
		{name: "tmp/", mode: 0o777 | 0o1000},
		{name: "usr/bin", link: "../bin"},
		{name: "var/", mode: 0o755},
		{name: "var/run/", mode: 0o755},
	}
	for _, applet := range applets {
		if applet != "busybox" && !strings.Contains(applet, "/") {
			files = append(files, file{name: "bin/" + applet, link: "busybox"})
		}
	}
	return files
}

// file is a regular file, a directory (name ends in "/") or a symbolic link.
type file struct {
	name, link string
	mode       int64
	data       []byte
}

// layer returns a layer of files. Times are zero and the order is by name, so that equal files give equal layers.
func layer(files []file) (v1.Layer, error) {
	sort.Slice(files, func(i, j int) bool { return files[i].name < files[j].name })
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Size: int64(len(f.data)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		switch {
		case f.link != "":
			h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, f.link, 0o777
		case strings.HasSuffix(f.name, "/"):
			h.Typeflag = tar.TypeDir
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, fmt.Errorf("write layer: %w", err)
		}
		if _, err := w.Write(f.data); err != nil {
			return nil, fmt.Errorf("write layer: %w", err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("write layer: %w", err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	if err != nil {
		return nil, fmt.Errorf("make layer: %w", err)
	}
	return l, nil
}

func image(c v1.Config, layers ...v1.Layer) (v1.Image, error) {
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, fmt.Errorf("append layers: %w", err)
	}
	cf, err := img.ConfigFile()
	if err != nil {
		return nil, fmt.Errorf("read image's configuration: %w", err)
	}
	cf = cf.DeepCopy()
	cf.Architecture, cf.OS, cf.Config = runtime.GOARCH, "linux", c
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		return nil, fmt.Errorf("configure image: %w", err)
	}
	return img, nil
}

// WriteArchive writes images as one archive that docker load and ctr import read.
func WriteArchive(w io.Writer, imgs map[string]v1.Image) error {
	refs := map[name.Reference]v1.Image{}
	for tag, img := range imgs {
		ref, err := name.NewTag(tag)
		if err != nil {
			return fmt.Errorf("name image: %w", err)
		}
		refs[ref] = img
	}
	if err := tarball.MultiRefWrite(refs, w); err != nil {
		return fmt.Errorf("write image archive: %w", err)
	}
	return nil
}

// Usable reports whether this machine can build the images: it needs a static busybox.
func Usable() error {
	_, _, err := staticBusybox()
	return err
}

func staticBusybox() (path string, data []byte, err error) {
	if path, err = find("busybox"); err != nil {
		return "", nil, err
	}
	if data, err = os.ReadFile(path); err != nil {
		return "", nil, fmt.Errorf("read busybox: %w", err)
	}
	if err := static(data); err != nil {
		return "", nil, fmt.Errorf("use %s for images: %w (apt-get install busybox-static)", path, err)
	}
	return path, data, nil
}

// machineBusybox reads the machine's static busybox and asks it for its applets.
func machineBusybox(ctx context.Context) ([]byte, []string, error) {
	path, data, err := staticBusybox()
	if err != nil {
		return nil, nil, err
	}
	out, err := exec.CommandContext(ctx, path, "--list").Output()
	if err != nil {
		return nil, nil, fmt.Errorf("list busybox's programs: %w", err)
	}
	return data, strings.Fields(string(out)), nil
}

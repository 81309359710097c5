// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// repository is the name of the image, which is in no registry yet.
const repository = "mortise.local/mortise"

// images writes the image for all of Linux's processors into one archive, and for each processor into one of its own.
func (r *release) images(work string) error {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	count := 0
	for _, p := range r.platforms {
		if p.os != "linux" {
			continue
		}
		image, err := r.image(p)
		if err != nil {
			return fmt.Errorf("make image for %s: %w", p, err)
		}
		add := mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: p.os, Architecture: p.arch}}}
		index = mutate.AppendManifests(index, add)
		count++
		dir := filepath.Join(work, "image-"+p.arch)
		at, err := layout.Write(dir, empty.Index)
		if err == nil {
			err = at.AppendImage(image, layout.WithAnnotations(r.names()), layout.WithPlatform(*add.Platform))
		}
		if err == nil {
			err = r.forDocker(dir, image)
		}
		if err == nil {
			err = r.packLayout(dir, r.named("image_"+p.arch+".tar"))
		}
		if err != nil {
			return fmt.Errorf("write image for %s: %w", p, err)
		}
	}
	if count == 0 {
		return nil
	}
	dir := filepath.Join(work, "image")
	at, err := layout.Write(dir, empty.Index)
	if err == nil {
		err = at.AppendIndex(index, layout.WithAnnotations(r.names()))
	}
	if err == nil {
		err = r.packLayout(dir, r.named("image.tar"))
	}
	if err != nil {
		return fmt.Errorf("write image: %w", err)
	}
	return nil
}

// names are the annotations by which containerd and others name an image of an archive.
func (r *release) names() map[string]string {
	return map[string]string{"io.containerd.image.name": repository + ":" + r.version, "org.opencontainers.image.ref.name": r.version}
}

// image makes the image of a platform: the binary and nothing else.
func (r *release) image(p platform) (v1.Image, error) {
	data, err := os.ReadFile(r.binary(p))
	if err != nil {
		return nil, err
	}
	var content bytes.Buffer
	if err := writeTar(&content, []entry{
		{name: "tmp/", mode: 0o1777}, {name: "usr/", mode: 0o755}, {name: "usr/bin/", mode: 0o755},
		{name: "usr/bin/mortise", mode: 0o755, data: data},
		{name: "var/", mode: 0o755}, {name: "var/lib/", mode: 0o755}, {name: "var/lib/mortise/", mode: 0o700},
	}, r.time); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(content.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching)
	if err != nil {
		return nil, err
	}
	created := v1.Time{Time: r.time}
	base := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.Append(base, mutate.Addendum{Layer: layer, MediaType: types.OCILayer, History: v1.History{
		Created: created, CreatedBy: "scripts/release", Comment: "the binary",
	}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Created, config.Author = p.os, p.arch, created, "The Mortise Authors"
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/mortise"}, Cmd: []string{"up", "--listen", "0.0.0.0:6443", "--data-dir", "/var/lib/mortise"},
		Env: []string{"PATH=/usr/bin", "HOME=/var/lib/mortise"}, ExposedPorts: map[string]struct{}{"6443/tcp": {}},
		Volumes: map[string]struct{}{"/var/lib/mortise": {}}, StopSignal: "SIGTERM",
		Labels: map[string]string{
			"org.opencontainers.image.title": "mortise", "org.opencontainers.image.version": r.version,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, config)
}

// forDocker adds the list of images that docker load reads, beside OCI's.
func (r *release) forDocker(dir string, image v1.Image) error {
	config, err := image.ConfigName()
	if err != nil {
		return err
	}
	layers, err := image.Layers()
	if err != nil {
		return err
	}
	blob := func(h v1.Hash) string { return "blobs/" + h.Algorithm + "/" + h.Hex }
	d := tarball.Descriptor{Config: blob(config), RepoTags: []string{repository + ":" + r.version}}
	for _, l := range layers {
		h, err := l.Digest()
		if err != nil {
			return err
		}
		d.Layers = append(d.Layers, blob(h))
	}
	text, err := json.Marshal(tarball.Manifest{d})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), text, 0o644) //nolint:gosec // everybody may read it
}

// packLayout writes a directory into a tar file, in the order of the names.
func (r *release) packLayout(dir, name string) error {
	var entries []entry
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		rel, err := filepath.Rel(dir, p)
		if err != nil {
			return err
		}
		e := entry{name: filepath.ToSlash(rel), mode: 0o644}
		if d.IsDir() {
			e.name, e.mode = e.name+"/", 0o755
		} else if e.data, err = os.ReadFile(p); err != nil {
			return err
		}
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return err
	}
	return toFile(name, func(w io.Writer) error { return writeTar(w, entries, r.time) })
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// Runtime is a containerd, called through its ctr program.
type Runtime struct {
	ctr    string
	socket string
}

// Open returns the containerd at a socket.
func Open(socket string) (*Runtime, error) {
	ctr, err := find("ctr")
	if err != nil {
		return nil, err
	}
	return &Runtime{ctr: ctr, socket: strings.TrimPrefix(socket, "unix://")}, nil
}

// Has returns the names of containerd's images.
func (r *Runtime) Has(ctx context.Context) ([]string, error) {
	out, err := r.run(ctx, nil, "images", "ls", "-q")
	return strings.Fields(out), err
}

// Load builds and imports the images of [Names] that containerd lacks.
func (r *Runtime) Load(ctx context.Context) error {
	have, err := r.Has(ctx)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(Names(), func(n string) bool { return !slices.Contains(have, n) }) {
		return nil
	}
	busybox, applets, err := machineBusybox(ctx)
	if err != nil {
		return err
	}
	imgs, err := Build(busybox, applets)
	if err != nil {
		return err
	}
	for _, n := range have {
		delete(imgs, n)
	}
	return r.Import(ctx, imgs)
}

// Import imports images under their names, unpacked.
func (r *Runtime) Import(ctx context.Context, imgs map[string]v1.Image) error {
	pr, pw := io.Pipe()
	written := make(chan error, 1)
	go func() {
		err := WriteArchive(pw, imgs)
		pw.CloseWithError(err)
		written <- err
	}()
	_, err := r.run(ctx, pr, "images", "import", "--no-unpack", "-")
	pr.CloseWithError(io.ErrClosedPipe) // unblocks the writer if ctr did not read to the end
	if werr := <-written; err == nil && werr != nil && !errors.Is(werr, io.ErrClosedPipe) {
		err = werr
	}
	return err
}

// Alias gives an image a second name, unless that name exists already or is empty.
func (r *Runtime) Alias(ctx context.Context, image, alias string) error {
	if alias == "" || alias == image {
		return nil
	}
	have, err := r.Has(ctx)
	if err != nil || slices.Contains(have, alias) {
		return err
	}
	_, err = r.run(ctx, nil, "images", "tag", image, alias)
	return err
}

func (r *Runtime) run(ctx context.Context, in io.Reader, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, r.ctr, append([]string{"--address", r.socket, "--namespace", "k8s.io"}, args...)...)
	var out, errs bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &errs
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errs.String()))
	}
	return out.String(), nil
}

// find finds a program in the directories of root's programs, whatever PATH contains.
func find(program string) (string, error) {
	if p, err := exec.LookPath(program); err == nil {
		return p, nil
	}
	for _, dir := range []string{"/usr/bin", "/bin", "/usr/local/bin", "/usr/sbin", "/sbin"} {
		if p, err := exec.LookPath(filepath.Join(dir, program)); err == nil {
			return p, nil
		}
	}
	return "", fmt.Errorf("find program: %s is not installed", program)
}

// static returns an error unless an executable runs in an empty file system.
func static(program []byte) error {
	f, err := elf.NewFile(bytes.NewReader(program))
	if err != nil {
		return err
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("it is linked to shared libraries")
		}
	}
	return nil
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package machine prepares a bare machine for real containers.
//
// [Prepare] installs missing programs with apt-get, and uses a containerd that responds; if there is none, it starts one below the data
// directory, with a configuration for this machine (cgroups v1 or v2, with or without CAP_SYS_RESOURCE, overlayfs or not, Debian's or
// upstream's directory of the CNI programs). It then loads the small images of package images, so that the first pod needs no registry.
//
// A containerd started here is in a session of its own and outlives the process that started it, so that pods keep running while Mortise
// restarts; the next Prepare with the same data directory finds it again by its socket. [Stop] stops it and leaves its pods running,
// [Destroy] stops the pods too.
//
//	DIR/containerd/config.toml      written at each start
//	DIR/containerd/containerd.log   what it said
//	DIR/containerd/containerd.pid   who it is
//	DIR/containerd/containerd.sock  where it answers (below /run when this path is too long for a socket)
//	DIR/containerd/certs.d          a directory for each registry that has mirrors, made by the user (hosts.toml)
//	DIR/containerd/root, state      its own
//
// Prepare takes a file lock on DIR/containerd, so that several processes may call it concurrently.
//
// A node with real containers uses things of which the machine, or the network namespace, has one: the pods' bridge, the rules of Services
// and the host ports. It takes a [Claim] on them while it runs, so that a second one is refused.
package machine

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/machine/images"
)

// HostSocket is the socket of a machine's own containerd.
const HostSocket = "/run/containerd/containerd.sock"

// Options configures Prepare. The zero value, with a DataDir, installs and starts whatever is missing.
type Options struct {
	// DataDir is the directory below which a containerd started by Prepare keeps its data. Required.
	DataDir string
	// Socket, if set, is the CRI socket to use; Prepare then installs and starts nothing.
	Socket string
	// Private ignores the machine's own containerd even if it answers (tests).
	Private bool
	// NoInstall makes missing programs an error.
	NoInstall bool
	// NoImages does not load the local images.
	NoImages bool
	// CNIConfDir is the directory of network configurations of the started containerd; default DIR/containerd/cni, which is its own.
	CNIConfDir string
	// Progress receives a line for each step that takes more than a second; nil discards them.
	Progress io.Writer
}

// Prepare prepares the machine for containers and returns the CRI socket to use. Every error is one clear line.
func Prepare(ctx context.Context, o Options) (socket string, err error) {
	if o.DataDir == "" {
		return "", fmt.Errorf("prepare machine: no data directory given")
	}
	if o.Socket != "" {
		if err := Answers(ctx, o.Socket); err != nil {
			return "", fmt.Errorf("reach container runtime at %s: %w", o.Socket, err)
		}
	} else if o.Socket, err = arrange(ctx, o); err != nil {
		return "", err
	}
	if o.NoImages {
		return o.Socket, nil
	}
	err = step(o.Progress, "loading the local images", func() error {
		return loadImages(ctx, o.Socket)
	})
	if err != nil {
		return "", err
	}
	return o.Socket, nil
}

// arrange returns the socket of a containerd that answers, starting one if necessary.
func arrange(ctx context.Context, o Options) (string, error) {
	d, err := at(o.DataDir)
	if err != nil {
		return "", err
	}
	if os.Geteuid() == 0 {
		if err := removeIdleBridge(ctx); err != nil {
			return "", err
		}
	}
	if Answers(ctx, d.socket) == nil {
		return d.socket, nil
	}
	if os.Geteuid() != 0 {
		if !o.Private && Answers(ctx, HostSocket) == nil {
			return HostSocket, nil
		}
		return "", fmt.Errorf("prepare machine: real containers need root, or a CRI socket that answers; --node simulated needs neither")
	}
	if err := install(ctx, o); err != nil {
		return "", err
	}
	if !o.Private && Answers(ctx, HostSocket) == nil {
		return HostSocket, nil
	}
	if err := os.MkdirAll(d.dir, 0o711); err != nil {
		return "", fmt.Errorf("make containerd's directory: %w", err)
	}
	unlock, err := lock(filepath.Join(d.dir, "lock"))
	if err != nil {
		return "", err
	}
	defer unlock()
	if Answers(ctx, d.socket) == nil { // another process was faster
		return d.socket, nil
	}
	if o.CNIConfDir == "" {
		o.CNIConfDir = d.cniConfDir()
		if other := cni.Other(cni.DefaultDir); other != "" && o.Progress != nil {
			fmt.Fprintf(o.Progress, "mortise: the network of %s is not used; --cni-conf-dir %s uses it\n", other, cni.DefaultDir)
		}
	}
	return d.socket, step(o.Progress, "starting containerd", func() error { return d.start(ctx, o) })
}

// loadImages imports the local images that the runtime does not have, through the ctr program.
func loadImages(ctx context.Context, socket string) error {
	r, err := images.Open(socket)
	if err != nil {
		return err
	}
	if err := r.Load(ctx); err != nil {
		return err
	}
	sandbox, err := SandboxImage(ctx, socket)
	if err != nil {
		return err
	}
	return r.Alias(ctx, images.Pause, sandbox)
}

// step runs f and reports it when it takes more than a second.
func step(w io.Writer, what string, f func() error) error {
	if w == nil {
		return f()
	}
	begin := time.Now()
	said := make(chan struct{})
	timer := time.AfterFunc(time.Second, func() {
		fmt.Fprintf(w, "mortise: %s …\n", what)
		close(said)
	})
	err := f()
	if !timer.Stop() {
		<-said
		if err == nil {
			fmt.Fprintf(w, "mortise: %s: done in %.1f s\n", what, time.Since(begin).Seconds())
		}
	}
	return err
}

// lock takes an exclusive lock on a file, which the kernel releases if the process dies.
func lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open lock: %w", err)
	}
	for {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX); err != unix.EINTR {
			break
		}
	}
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	return func() { f.Close() }, nil
}

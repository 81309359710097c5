// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// kubeletConfig leaves images and pods alone on a machine whose disk is nearly full: the suite's own are small.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
imageGCHighThresholdPercent: 100
evictionHard:
  memory.available: 100Mi
  nodefs.available: 1%
  imagefs.available: 1%
`

// hosts is containerd's file that names a mirror of a registry.
const hosts = `[host."http://%s"]
  capabilities = ["pull", "resolve"]
`

// cluster is a cluster of bin/mortise with a data directory of its own.
type cluster struct {
	binary, dir string
	kubeconfig  string
	containers  bool
	process     *exec.Cmd
	ended       chan error
	registry    *registry
}

// start starts a cluster and returns when it is ready.
func (s settings) start(ctx context.Context, r run, out string) (*cluster, error) {
	binary, err := filepath.Abs(s.binary)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		return nil, err
	}
	c := &cluster{binary: binary, dir: dir, kubeconfig: filepath.Join(out, "kubeconfig"), containers: r.containers}
	args := []string{"up", "--data-dir", filepath.Join(dir, "data"), "--kubeconfig", c.kubeconfig}
	if r.containers {
		more, err := c.prepareContainers(ctx, s.peers)
		if err != nil {
			return nil, errors.Join(err, c.stop())
		}
		args = append(args, more...)
	} else {
		args = append(args, "--listen", "127.0.0.1:0", "--node", "simulated", "--nodes", "2")
	}
	if err := c.up(args, filepath.Join(out, "up.log")); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	return c, nil
}

// prepareContainers starts the registry, makes it the mirror of the registries that the tests name, starts containerd, and returns the
// flags of `mortise up`.
func (c *cluster) prepareContainers(ctx context.Context, peers string) ([]string, error) {
	layers := filepath.Join(c.dir, "layers")
	if err := os.Mkdir(layers, 0o755); err != nil {
		return nil, err
	}
	images, err := standIns(ctx, peers, layers)
	if err != nil {
		return nil, err
	}
	if c.registry, err = serve(images); err != nil {
		return nil, err
	}
	for _, mirrored := range []string{"registry.k8s.io", "docker.io"} {
		d := filepath.Join(c.dir, "data", "containerd", "certs.d", mirrored)
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(d, "hosts.toml"), fmt.Appendf(nil, hosts, c.registry.address), 0o644); err != nil {
			return nil, err
		}
	}
	prepare := exec.CommandContext(ctx, c.binary, "machine", "prepare", "--data-dir", filepath.Join(c.dir, "data"))
	if out, err := prepare.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("prepare machine: %w: %s", err, out)
	}
	config := filepath.Join(c.dir, "kubelet.yaml")
	if err := os.WriteFile(config, []byte(kubeletConfig), 0o644); err != nil {
		return nil, err
	}
	return []string{"--listen", "0.0.0.0:0", "--node", "cri", "--kubelet-config", config}, nil
}

// up runs `mortise up` and returns when it says that it is ready.
func (c *cluster) up(args []string, log string) error {
	f, err := os.Create(log)
	if err != nil {
		return err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	c.process = exec.Command(c.binary, args...)
	c.process.Stdout, c.process.Stderr = f, write
	c.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this program, which stops the cluster after the suite
	if err := c.process.Start(); err != nil {
		return fmt.Errorf("start mortise: %w", err)
	}
	write.Close()
	c.ended = make(chan error, 1)
	ready := make(chan struct{})
	go func() {
		defer f.Close()
		follow(io.TeeReader(read, f), ready)
		c.ended <- c.process.Wait()
	}()
	select {
	case <-ready:
		return nil
	case err := <-c.ended:
		c.process = nil
		return fmt.Errorf("mortise ended, see %s: %v", log, err)
	case <-time.After(10 * time.Minute):
		return fmt.Errorf("mortise is not ready after ten minutes, see %s", log)
	}
}

// follow reads to the end, and closes ready at mortise's line of that.
func follow(r io.Reader, ready chan<- struct{}) {
	lines := bufio.NewReader(r)
	for {
		line, err := lines.ReadString('\n')
		if strings.HasPrefix(line, "mortise: ready in ") && ready != nil {
			close(ready)
			ready = nil
		}
		if err != nil {
			return
		}
	}
}

// stop ends the cluster, its pods and its containerd, and removes its directory.
func (c *cluster) stop() error {
	var errs []error
	if c.process != nil {
		errs = append(errs, c.process.Process.Signal(syscall.SIGTERM))
		select {
		case <-c.ended:
		case <-time.After(2 * time.Minute):
			errs = append(errs, c.process.Process.Kill(), errors.New("mortise did not end within two minutes"))
		}
	}
	if c.containers {
		if out, err := exec.Command(c.binary, "machine", "destroy", "--data-dir", filepath.Join(c.dir, "data")).CombinedOutput(); err != nil {
			errs = append(errs, fmt.Errorf("remove the cluster's containers: %w: %s", err, out))
		}
	}
	if c.registry != nil {
		errs = append(errs, c.registry.close())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("%w (%s is left)", err, c.dir) // volumes may still be mounted in it
	}
	return os.RemoveAll(c.dir)
}

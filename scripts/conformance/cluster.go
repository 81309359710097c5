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
	program     *program
	second      *second // nil: there is one node
	registry    *registry
}

// program is a process of mortise that runs.
type program struct {
	process *exec.Cmd
	ended   chan error
}

// start starts a cluster and returns when it is ready. With a lan, its server and its nodes have their addresses there.
func (s settings) start(ctx context.Context, r run, l *lan, out string) (*cluster, error) {
	binary, err := filepath.Abs(s.binary)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "conformance-")
	if err != nil {
		return nil, err
	}
	c := &cluster{binary: binary, dir: dir, kubeconfig: filepath.Join(out, "kubeconfig"), containers: r.containers}
	args := append([]string{"up", "--data-dir", filepath.Join(dir, "data"), "--kubeconfig", c.kubeconfig}, r.flags...)
	if r.containers {
		at, listen := "127.0.0.1", "0.0.0.0:0"
		if l != nil {
			at, listen = machineSide, machineSide+":0"
		}
		more, err := c.prepareContainers(ctx, s.peers, at)
		if err != nil {
			return nil, errors.Join(err, c.stop())
		}
		args = append(append(args, "--listen", listen), more...)
		if r.outside {
			args = append(args, "--load-balancer-pool", pool)
		}
	} else {
		args = append(args, "--listen", "127.0.0.1:0", "--node", "simulated", "--nodes", "2")
	}
	if c.program, err = begin(exec.Command(binary, args...), filepath.Join(out, "up.log")); err != nil {
		return nil, errors.Join(err, c.stop())
	}
	if r.nodes > 1 {
		if err := c.join(ctx, l, out); err != nil {
			return nil, errors.Join(err, c.stop())
		}
	}
	return c, nil
}

// prepareContainers starts the registry at an address, makes it the mirror of the registries that the tests name, starts containerd, and
// returns the flags of `mortise up`.
func (c *cluster) prepareContainers(ctx context.Context, peers, at string) ([]string, error) {
	layers := filepath.Join(c.dir, "layers")
	if err := os.Mkdir(layers, 0o755); err != nil {
		return nil, err
	}
	images, err := standIns(ctx, peers, layers)
	if err != nil {
		return nil, err
	}
	if c.registry, err = serve(images, at); err != nil {
		return nil, err
	}
	if err := c.mirrors(filepath.Join(c.dir, "data")); err != nil {
		return nil, err
	}
	prepare := exec.CommandContext(ctx, c.binary, "machine", "prepare", "--data-dir", filepath.Join(c.dir, "data"))
	if out, err := prepare.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("prepare machine: %w: %s", err, out)
	}
	config, err := c.kubeletConfig("")
	if err != nil {
		return nil, err
	}
	return []string{"--node", "cri", "--kubelet-config", config}, nil
}

// mirrors has the containerd of the node with this data directory pull the images of the tests' registries from the registry of stand-ins.
func (c *cluster) mirrors(data string) error {
	for _, mirrored := range []string{"registry.k8s.io", "docker.io"} {
		d := filepath.Join(data, "containerd", "certs.d", mirrored)
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(d, "hosts.toml"), fmt.Appendf(nil, hosts, c.registry.address), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// kubeletConfig writes a node's configuration. The pods of a second node, whose name it is, have cgroups of their own: the nodes share the
// machine's.
func (c *cluster) kubeletConfig(second string) (string, error) {
	text := kubeletConfig
	if second != "" {
		text += "cgroupRoot: /" + second + "-" + thisRun + "\n"
	}
	path := filepath.Join(c.dir, "kubelet"+second+".yaml")
	return path, os.WriteFile(path, []byte(text), 0o644)
}

// begin runs a server or a node and returns when it says that it is ready.
func begin(process *exec.Cmd, log string) (*program, error) {
	f, err := os.Create(log)
	if err != nil {
		return nil, err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	process.Stdout, process.Stderr = f, write
	process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for this program, which stops the cluster after the suite
	if err := process.Start(); err != nil {
		return nil, fmt.Errorf("start mortise: %w", err)
	}
	write.Close()
	p := &program{process: process, ended: make(chan error, 1)}
	ready := make(chan struct{})
	go func() {
		defer f.Close()
		follow(io.TeeReader(read, f), ready)
		p.ended <- process.Wait()
	}()
	select {
	case <-ready:
		return p, nil
	case err := <-p.ended:
		return nil, fmt.Errorf("mortise ended, see %s: %v", log, err)
	case <-time.After(10 * time.Minute):
		return nil, errors.Join(fmt.Errorf("mortise is not ready after ten minutes, see %s", log), p.stop())
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

// stop ends the process.
func (p *program) stop() error {
	err := p.process.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.ended:
		return err
	case <-time.After(2 * time.Minute):
		return errors.Join(err, p.process.Process.Kill(), errors.New("mortise did not end within two minutes"))
	}
}

// stop ends the cluster, its pods and its containerd, and removes its directory.
func (c *cluster) stop() error {
	var errs []error
	if c.second != nil {
		errs = append(errs, c.second.stop())
	}
	if c.program != nil {
		errs = append(errs, c.program.stop())
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

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
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/mortise-dev/mortise/internal/machine/unshare"
)

// secondName is the name of the second node.
const secondName = "conformance-second"

// hostVariable tells a process of this program that it is a host.
const hostVariable = "MORTISE_CONFORMANCE_HOST"

// host is a second machine, as far as namespaces make one: its network, its name, and the directories that are the machine's
// (unshare.Dirs) are its own.
type host struct {
	process *exec.Cmd
	lives   io.Closer // the host ends when it is closed
}

// runHost is what the process of a host does: it keeps the namespaces.
func runHost() error {
	if err := errors.Join(unshare.Arrange(), unix.Sethostname([]byte(secondName))); err != nil {
		return err
	}
	fmt.Println("ready")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// newHost makes one, and plugs it in.
func newHost(l *lan, address string) (*host, error) {
	h := &host{process: exec.Command("/proc/self/exe")}
	h.process.Env = append(os.Environ(), hostVariable+"=yes")
	h.process.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWUTS}
	h.process.Stderr = os.Stderr
	in, err := h.process.StdinPipe()
	if err != nil {
		return nil, err
	}
	h.lives = in
	out, err := h.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := h.process.Start(); err != nil {
		return nil, fmt.Errorf("make a host: %w", err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "ready\n" {
		return nil, errors.Join(fmt.Errorf("the host says %q: %w", line, err), h.close())
	}
	if err := l.plug(h.process.Process.Pid, address); err != nil {
		return nil, errors.Join(err, h.close())
	}
	return h, nil
}

// command is a program that runs on the host.
func (h *host) command(program string, args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"--target", strconv.Itoa(h.process.Process.Pid), "--mount", "--net", "--uts", "--",
		program}, args...)...)
}

func (h *host) close() error { return errors.Join(h.lives.Close(), h.process.Wait()) }

// second is a node on a host of its own, with its own containerd.
type second struct {
	*host
	cluster  *cluster
	dir      string
	prepared bool
	node     *program
}

// join starts the second node as the documentation says, and returns when it is ready.
func (c *cluster) join(ctx context.Context, l *lan, out string) error {
	h, err := newHost(l, secondSide)
	if err != nil {
		return err
	}
	s := &second{host: h, cluster: c, dir: filepath.Join(c.dir, "second")}
	c.second = s
	if err := c.mirrors(s.dir); err != nil {
		return err
	}
	s.prepared = true
	if out, err := s.command(c.binary, "machine", "prepare", "--no-install", "--data-dir", s.dir).CombinedOutput(); err != nil {
		return fmt.Errorf("prepare the second machine: %w: %s", err, out)
	}
	config, err := c.kubeletConfig(secondName)
	if err != nil {
		return err
	}
	line, err := exec.CommandContext(ctx, c.binary, "token", "create", "--kubeconfig", c.kubeconfig, "--print-join-command").Output()
	if err != nil {
		return fmt.Errorf("create a token: %w", err)
	}
	args := append(strings.Fields(string(line))[1:], "--data-dir", s.dir, "--node", "cri", "--no-kubelet-links", "--kubelet-config", config)
	s.node, err = begin(s.command(c.binary, args...), filepath.Join(out, "second.log"))
	if err != nil {
		return fmt.Errorf("join the second node: %w", err)
	}
	ready := exec.CommandContext(ctx, c.binary, "kubectl", "--kubeconfig", c.kubeconfig, "wait", "--for=condition=Ready", "--timeout=5m",
		"node", "--all")
	if out, err := ready.CombinedOutput(); err != nil {
		return fmt.Errorf("wait for the second node: %w: %s", err, out)
	}
	return nil
}

// stop ends the node, its pods, its containerd and the host.
func (s *second) stop() (err error) {
	if s.node != nil {
		err = s.node.stop()
	}
	if s.prepared {
		destroy := s.command(s.cluster.binary, "machine", "destroy", "--data-dir", s.dir)
		if out, failed := destroy.CombinedOutput(); failed != nil {
			err = errors.Join(err, fmt.Errorf("remove the second node's containers: %w: %s", failed, out))
		}
	}
	return errors.Join(err, s.close())
}

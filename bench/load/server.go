// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Bare is a server with nothing but the API.
var Bare = []string{"--node", "none", "--controllers", "none"}

// Server is a running binary.
type Server struct {
	Target
	dir     string
	command *exec.Cmd
	Ready   time.Duration // exec until the ready line
	stopped bool
}

// Start runs `mortise up` with an empty data directory and waits for its ready line.
func Start(ctx context.Context, binary string, args ...string) (*Server, error) {
	dir, err := os.MkdirTemp("", "mortise-bench-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	if err := s.run(ctx, binary, args...); err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// StartBeside starts a server with the keys of another one, whose store it shares by the arguments.
func StartBeside(ctx context.Context, binary string, other *Server, args ...string) (*Server, error) {
	dir, err := os.MkdirTemp("", "mortise-bench-")
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir}
	const keys = "data/pki"
	err = os.CopyFS(filepath.Join(dir, keys), os.DirFS(filepath.Join(other.dir, keys)))
	if err == nil {
		err = s.run(ctx, binary, args...)
	}
	if err != nil {
		return nil, errors.Join(err, s.Stop())
	}
	return s, nil
}

// Again ends the process and starts one with other arguments on what it has stored.
func (s *Server) Again(ctx context.Context, binary string, args ...string) error {
	if err := errors.Join(s.command.Process.Signal(syscall.SIGTERM), s.command.Wait()); err != nil {
		return fmt.Errorf("stop %s: %w", binary, err)
	}
	s.command = nil
	return s.run(ctx, binary, args...)
}

// run is a process on the server's data directory.
func (s *Server) run(ctx context.Context, binary string, args ...string) error {
	kubeconfig := filepath.Join(s.dir, "kubeconfig")
	s.command = exec.CommandContext(ctx, binary, append([]string{"up", "--data-dir", filepath.Join(s.dir, "data"), "--kubeconfig", kubeconfig,
		"--listen", "127.0.0.1:0"}, args...)...)
	process := s.command
	process.Cancel = func() error { return process.Process.Signal(syscall.SIGTERM) }
	stderr, err := s.command.StderrPipe()
	if err != nil {
		return err
	}
	began := time.Now()
	if err := s.command.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(stderr)
	var said []string
	for lines.Scan() {
		said = append(said, lines.Text())
		if strings.HasPrefix(lines.Text(), "mortise: ready in ") {
			s.Ready = time.Since(began)
			go func() {
				for lines.Scan() {
					fmt.Fprintln(os.Stderr, lines.Text())
				}
			}()
			t, err := Connect(kubeconfig, []int{s.command.Process.Pid})
			if err != nil {
				return err
			}
			t.serial = s.serial
			s.Target = *t
			return nil
		}
	}
	return fmt.Errorf("start %s: %s", binary, strings.Join(said, "; "))
}

// Stop ends the process cleanly and removes its data. More calls do nothing.
func (s *Server) Stop() error {
	if s.stopped {
		return nil
	}
	s.stopped = true
	var errs []error
	if s.command != nil && s.command.Process != nil {
		errs = append(errs, s.command.Process.Signal(syscall.SIGTERM), s.command.Wait())
	}
	return errors.Join(append(errs, os.RemoveAll(s.dir))...)
}

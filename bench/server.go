// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// server is a running binary.
type server struct {
	dir     string
	command *exec.Cmd
	config  *rest.Config
	ready   time.Duration // exec until the ready line
	stopped bool
}

// start runs `mortise up` with an empty data directory and waits for its ready line.
func start(ctx context.Context, binary string, args ...string) (_ *server, err error) {
	dir, err := os.MkdirTemp("", "mortise-bench-")
	if err != nil {
		return nil, err
	}
	s := &server{dir: dir}
	defer func() {
		if err != nil {
			s.stop()
		}
	}()
	kubeconfig := filepath.Join(dir, "kubeconfig")
	s.command = exec.CommandContext(ctx, binary, append([]string{"up", "--data-dir", filepath.Join(dir, "data"), "--kubeconfig", kubeconfig, "--listen", "127.0.0.1:0"}, args...)...)
	s.command.Cancel = func() error { return s.command.Process.Signal(syscall.SIGTERM) }
	stderr, err := s.command.StderrPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := s.command.Start(); err != nil {
		return nil, err
	}
	lines := bufio.NewScanner(stderr)
	var said []string
	for lines.Scan() {
		said = append(said, lines.Text())
		if strings.HasPrefix(lines.Text(), "mortise: ready in ") {
			s.ready = time.Since(began)
			go func() {
				for lines.Scan() {
					fmt.Fprintln(os.Stderr, lines.Text())
				}
			}()
			s.config, err = clientcmd.BuildConfigFromFlags("", kubeconfig)
			return s, err
		}
	}
	return nil, fmt.Errorf("start %s: %s", binary, strings.Join(said, "; "))
}

// stop ends the process cleanly and removes its data. More calls do nothing.
func (s *server) stop() error {
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

// cpu is the processor time that the server has used.
func (s *server) cpu() (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.command.Process.Pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("read /proc/PID/stat: %d fields", len(fields))
	}
	var ticks int64
	for _, f := range fields[11:13] { // utime and stime, in hundredths of a second
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// memory is the server's resident memory, and the part of it that is its own and not mapped from the binary, in bytes.
func (s *server) memory() (resident, anonymous int64, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.command.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range strings.SplitSeq(string(status), "\n") {
		name, value, _ := strings.Cut(line, ":")
		var into *int64
		switch name {
		case "VmRSS":
			into = &resident
		case "RssAnon":
			into = &anonymous
		default:
			continue
		}
		kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
		if err != nil {
			return 0, 0, err
		}
		*into = kb << 10
	}
	return resident, anonymous, nil
}

// client is an HTTP/1.1 client with a connection for each of n loops: the cheapest there is, so that the server is what
// is measured.
func (s *server) client(n int) (*http.Client, error) {
	config, err := rest.TLSConfigFor(s.config)
	if err != nil {
		return nil, err
	}
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: config, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{},
		MaxIdleConnsPerHost: n, MaxConnsPerHost: n,
	}}, nil
}

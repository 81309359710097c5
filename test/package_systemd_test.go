// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"bufio"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// standInSystemd is what a package's scripts ask of systemd, in the root of TestPackage on a machine without it: a program systemctl passes
// on what it is asked to the test, which starts and stops services as their units say. Other than systemd, it has no cgroups.
type standInSystemd struct {
	t    *testing.T
	root *debian

	mu       sync.Mutex
	asks     []string
	services map[string]*standInService
}

// standInService is a service that runs.
type standInService struct {
	process *exec.Cmd
	ended   chan struct{}
}

const standInSystemctl = `#!/bin/sh
echo "$*" >/run/systemctl.asks
read -r answer </run/systemctl.answers
`

// newStandInSystemd puts systemctl into the root.
func newStandInSystemd(t *testing.T, root *debian) *standInSystemd {
	t.Helper()
	s := &standInSystemd{t: t, root: root, services: map[string]*standInService{}}
	try(t, os.MkdirAll(packageRoot+"/run/systemd/system", 0o755))
	try(t, os.MkdirAll(packageRoot+"/usr/local/bin", 0o755))
	try(t, os.WriteFile(packageRoot+"/usr/local/bin/systemctl", []byte(standInSystemctl), 0o755))
	var pipes []*os.File
	for _, name := range []string{"asks", "answers"} {
		try(t, unix.Mkfifo(packageRoot+"/run/systemctl."+name, 0o600))
		f, err := os.OpenFile(packageRoot+"/run/systemctl."+name, os.O_RDWR, 0)
		try(t, err)
		t.Cleanup(func() { f.Close() })
		pipes = append(pipes, f)
	}
	go func() {
		for lines := bufio.NewScanner(pipes[0]); lines.Scan(); {
			s.do(strings.Fields(lines.Text()))
			if _, err := pipes[1].WriteString("done\n"); err != nil {
				return // the test is over
			}
		}
	}()
	return s
}

func (s *standInSystemd) begun() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.asks), func(asked string) bool { return strings.Contains(asked, "daemon-reload") })
}

// do does what systemctl is asked.
func (s *standInSystemd) do(args []string) {
	s.mu.Lock()
	s.asks = append(s.asks, strings.Join(args, " "))
	s.mu.Unlock()
	verb := ""
	for _, a := range args {
		switch {
		case strings.HasPrefix(a, "-"):
		case verb == "":
			verb = a
		case verb == "try-restart" && s.pid(a) != 0:
			s.stop(a)
			s.start(a)
		case verb == "stop" && s.pid(a) != 0:
			s.stop(a)
		}
	}
}

// pid returns the main process of a service; 0: it does not run.
func (s *standInSystemd) pid(unit string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if service := s.services[unit]; service != nil {
		return service.process.Process.Pid
	}
	return 0
}

// start starts a service, and returns when it says that it is ready.
func (s *standInSystemd) start(unit string) {
	text, err := os.ReadFile(packageRoot + "/usr/lib/systemd/system/" + unit)
	if err != nil {
		s.t.Errorf("start %s: %v", unit, err)
		return
	}
	settings := map[string]string{}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		settings[name] = value
	}
	if settings["Type"] != "notify" || settings["KillMode"] != "process" {
		s.t.Errorf("%s has the type %s and is ended by %s: this test knows services that notify, whose other processes go on", unit,
			settings["Type"], settings["KillMode"])
	}
	const socket = "/run/systemctl.notify"
	_ = os.Remove(packageRoot + socket) // of the start before
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: packageRoot + socket, Net: "unixgram"})
	if err != nil {
		s.t.Errorf("start %s: %v", unit, err)
		return
	}
	c := s.root.command(strings.Fields(settings["ExecStart"])...)
	c.Env = append(c.Env, "NOTIFY_SOCKET="+socket)
	c.Stdout, c.Stderr = s.t.Output(), s.t.Output()
	service := &standInService{process: c, ended: make(chan struct{})}
	if err := c.Start(); err != nil {
		s.t.Errorf("start %s: %v", unit, err)
		return
	}
	go func() {
		_ = c.Wait()
		l.Close()
		close(service.ended)
	}()
	s.mu.Lock()
	s.services[unit] = service
	s.mu.Unlock()
	for said := make([]byte, 4096); ; {
		n, err := l.Read(said)
		if err != nil {
			s.t.Errorf("%s ended before it was ready", unit)
			return
		}
		if strings.Contains(string(said[:n]), "READY=1") {
			break
		}
	}
	go func() { // until the service ends
		for said := make([]byte, 4096); ; {
			if _, err := l.Read(said); err != nil {
				return
			}
		}
	}()
}

// stop ends the main process of a service, and no other.
func (s *standInSystemd) stop(unit string) {
	s.mu.Lock()
	service := s.services[unit]
	delete(s.services, unit)
	s.mu.Unlock()
	_ = service.process.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	select {
	case <-service.ended:
	case <-time.After(patience):
		s.t.Errorf("%s does not end", unit)
		_ = service.process.Process.Kill()
	}
}

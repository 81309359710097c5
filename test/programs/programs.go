// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package programs builds programs and runs them, Mortise among them, for the tests of other modules. It is a module of its own, without
// dependencies, so that these modules get none through it.
package programs

import (
	"bytes"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Limit is how long anything may take.
const Limit = time.Minute

// patience is how long a program may take to end after SIGTERM.
const patience = 2 * time.Second

// dir is the folder of the programs.
var dir string

// A Program is a main package, of the module in a folder, and the name that it is built under.
type Program struct {
	In, Name, Package string
	Mod               string // the module's file; empty: go.mod
}

// Mortise is the program of the repository, for the tests of a module in a folder of test.
var Mortise = Program{In: filepath.Join("..", ".."), Name: "mortise", Package: "./cmd/mortise"}

// Main builds programs once, unless the flag -programs names a folder that has them, and runs the tests. It returns their exit code.
func Main(m *testing.M, list ...Program) int {
	built := flag.String("programs", "", "a folder that has the programs already; empty: they are built")
	flag.Parse()
	if dir = *built; dir != "" {
		return m.Run()
	}
	var err error
	if dir, err = os.MkdirTemp("", "mortise-programs-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	for _, p := range list {
		args := []string{"build", "-tags", "grpcnotrace", "-o", Path(p.Name)}
		if p.Mod != "" {
			args = append(args, "-modfile="+p.Mod)
		}
		build := exec.Command("go", append(args, p.Package)...)
		build.Dir, build.Env = p.In, append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			fmt.Fprintf(os.Stderr, "build %s: %v\n%s", p.Package, err, out)
			return 1
		}
	}
	return m.Run()
}

// Dir returns the folder of the programs, for the flag -programs of a test's process that the test starts.
func Dir() string { return dir }

// Path returns the file of a program.
func Path(name string) string { return filepath.Join(dir, name) }

// A Process is a program that runs.
type Process struct {
	t     *testing.T
	cmd   *exec.Cmd
	ended chan struct{}

	mu    sync.Mutex
	said  bytes.Buffer
	heard chan struct{} // holds one when it said something
}

// Start starts a program, with more environment variables, until the test ends. What it said at last is logged if the test fails.
func Start(t *testing.T, env []string, name string, args ...string) *Process {
	t.Helper()
	p := &Process{t: t, cmd: exec.Command(Path(name), args...), ended: make(chan struct{}), heard: make(chan struct{}, 1)}
	p.cmd.Stdout, p.cmd.Stderr, p.cmd.Env = p, p, append(os.Environ(), env...)
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = p.cmd.Wait() // how it ended is in what it said
		close(p.ended)
	}()
	t.Cleanup(func() {
		p.Stop()
		if t.Failed() {
			said := p.Said()
			t.Logf("%s said:\n%s", name, said[max(0, len(said)-6000):])
		}
	})
	return p
}

// Write takes what the program says.
func (p *Process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said.Write(b)
	select {
	case p.heard <- struct{}{}:
	default:
	}
	return len(b), nil
}

// Said returns all that the program has said.
func (p *Process) Said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.said.String()
}

// Signal sends the process a signal.
func (p *Process) Signal(s os.Signal) error { return p.cmd.Process.Signal(s) }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Stop ends the process.
func (p *Process) Stop() {
	_ = p.Signal(syscall.SIGTERM) // it may have ended by itself
	select {
	case <-p.ended:
	case <-time.After(patience):
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}

// Await waits until the program has said something, and returns the submatches.
func (p *Process) Await(what *regexp.Regexp) []string {
	p.t.Helper()
	late := time.After(Limit)
	for {
		if m := what.FindStringSubmatch(p.Said()); m != nil {
			return m
		}
		select {
		case <-p.heard:
		case <-p.ended:
			p.t.Fatalf("%s ended before it said %q", p.cmd.Path, what)
		case <-late:
			p.t.Fatalf("%s did not say %q", p.cmd.Path, what)
		}
	}
}

// Listening waits until a program listens at an address of TCP. Some say that they are ready a moment before.
func (p *Process) Listening(address string) {
	p.t.Helper()
	look := time.NewTicker(20 * time.Millisecond)
	defer look.Stop()
	late := time.After(Limit)
	for {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
			return
		}
		select {
		case <-look.C:
		case <-p.ended:
			p.t.Fatalf("%s ended before it listened at %s", p.cmd.Path, address)
		case <-late:
			p.t.Fatal(err)
		}
	}
}

// FreePort returns a port of 127.0.0.1 that was free a moment ago.
func FreePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// A Cluster is a Mortise.
type Cluster struct {
	T          *testing.T
	Kubeconfig string
	Home       string // kubectl's
	*Process
}

// ready is the line that Mortise ends its start with.
var ready = regexp.MustCompile(`(?m)^mortise: ready in `)

// Up starts a Mortise with more flags of `mortise up`, and waits until it is ready.
func Up(t *testing.T, args ...string) *Cluster {
	t.Helper()
	home := t.TempDir()
	return UpIn(t, home, append([]string{"--data-dir", filepath.Join(home, "data"), "--listen", "127.0.0.1:0"}, args...)...)
}

// UpIn is Up with all flags given but that of the kubeconfig, which is in a folder.
func UpIn(t *testing.T, home string, args ...string) *Cluster {
	t.Helper()
	c := &Cluster{T: t, Kubeconfig: filepath.Join(home, "kubeconfig"), Home: home}
	c.Process = Start(t, nil, Mortise.Name, append([]string{"up", "--kubeconfig", c.Kubeconfig}, args...)...)
	c.Await(ready)
	return c
}

// In returns the cluster for a subtest, which fails by itself.
func (c *Cluster) In(t *testing.T) *Cluster {
	sub := *c
	sub.T = t
	return &sub
}

// Command returns kubectl with arguments, before it runs.
func (c *Cluster) Command(args ...string) *exec.Cmd {
	cmd := exec.Command(Path(Mortise.Name), append([]string{"kubectl"}, args...)...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "HOME="+c.Home)
	return cmd
}

// Kubectl runs kubectl to its end.
func (c *Cluster) Kubectl(input string, args ...string) (string, error) {
	cmd := c.Command(args...)
	cmd.Stdin = strings.NewReader(input)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Do is Kubectl where it must not fail.
func (c *Cluster) Do(input string, args ...string) string {
	c.T.Helper()
	out, err := c.Kubectl(input, args...)
	if err != nil {
		c.T.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

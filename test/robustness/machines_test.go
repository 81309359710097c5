// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package robustness

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/test/programs"
)

// limit is how long anything may take.
const limit = 2 * time.Minute

// inside names the environment variable of a test that runs in a network namespace of its own.
const inside = "MORTISE_TEST_INSIDE"

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m,
		programs.Program{In: filepath.Join("..", "etcd"), Mod: "server.mod", Name: "etcd", Package: "go.etcd.io/etcd/server/v3"},
		programs.Mortise,
	))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// alone runs the test in a network namespace of its own, and reports whether this process is in it.
func alone(t *testing.T) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=0", "-programs="+programs.Dir())
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr // as it comes: many seeds take long
	if err := cmd.Run(); err != nil {
		t.Errorf("in a network namespace: %v", err)
	}
	return false
}

// network is a switch, and the machines at it. Machine i has the address 10.0.0.(1+i).
type network struct{ machines []*machine }

// machine is a network namespace, which lives as long as the process that holds it.
type machine struct {
	at     string // its address
	holder *exec.Cmd
}

// build makes a network of n machines, that of this process's namespace.
func build(t *testing.T, n int) *network {
	t.Helper()
	w := &network{}
	ip(t, "link", "set", "lo", "up")
	ip(t, "link", "add", "switch", "type", "bridge")
	ip(t, "address", "add", "10.0.0.254/24", "dev", "switch")
	ip(t, "link", "set", "switch", "up")
	for i := range n {
		m := &machine{at: fmt.Sprintf("10.0.0.%d", 1+i), holder: exec.Command("cat")}
		in, err := m.holder.StdinPipe()
		must(t, err)
		m.holder.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		must(t, m.holder.Start())
		t.Cleanup(func() {
			in.Close()
			_ = m.holder.Wait()
		})
		port := fmt.Sprint("port", i)
		ip(t, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", fmt.Sprint(m.holder.Process.Pid))
		ip(t, "link", "set", port, "master", "switch", "up")
		for _, args := range []string{"ip link set lo up", "ip address add " + m.at + "/24 dev eth0", "ip link set eth0 up"} {
			must(t, m.do("", strings.Fields(args)...))
		}
		w.machines = append(w.machines, m)
	}
	return w
}

func ip(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		t.Fatalf("ip %v: %v\n%s", args, err, out)
	}
}

// command returns a command that runs on the machine.
func (m *machine) command(args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"-n", "-t", fmt.Sprint(m.holder.Process.Pid)}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// do runs a command on the machine, to its end.
func (m *machine) do(in string, args ...string) error {
	cmd := m.command(args...)
	cmd.Stdin = strings.NewReader(in)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%v: %w: %s", args, err, out)
	}
	return nil
}

// drop lets the machine lose packets, those that nftables' expressions match: of what comes in, and of what goes out.
func (m *machine) drop(in, out []string) error {
	rules := "table ip faults {\n"
	for hook, matches := range map[string][]string{"input": in, "output": out} {
		rules += "chain " + hook + " { type filter hook " + hook + " priority 0\n"
		for _, match := range matches {
			rules += match + " drop\n"
		}
		rules += "}\n"
	}
	return m.do(rules+"}\n", "nft", "-f", "-")
}

// heal ends the loss of packets.
func (m *machine) heal() error { return m.do("flush ruleset\n", "nft", "-f", "-") }

// process is a program on a machine, that can be killed, stopped and started again.
type process struct {
	machine *machine
	args    []string
	log     string // the file of its output
	running *exec.Cmd
	output  *output
}

// output keeps what a process writes, and tells when a server says that it is ready.
type output struct {
	file  *os.File
	text  []byte
	once  sync.Once
	ready chan struct{} // closed then
}

// Write implements [io.Writer].
func (o *output) Write(text []byte) (int, error) {
	if len(o.text) < 1<<16 {
		if o.text = append(o.text, text...); bytes.Contains(o.text, []byte("ready in")) {
			o.once.Do(func() { close(o.ready) })
		}
	}
	return o.file.Write(text)
}

func (p *process) start() error {
	file, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	p.output = &output{file: file, ready: make(chan struct{})}
	cmd := p.machine.command(p.args...)
	cmd.Stdout, cmd.Stderr = p.output, p.output
	if err := cmd.Start(); err != nil {
		return errors.Join(err, file.Close())
	}
	p.running = cmd
	return nil
}

// ready waits until the process has said so.
func (p *process) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	select {
	case <-p.output.ready:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("not ready within %s: %s", limit, p.output.text)
	}
}

// end sends a signal that ends the process, and waits for its end.
func (p *process) end(s syscall.Signal) {
	if p.running == nil {
		return
	}
	_ = p.signal(s)
	_ = p.running.Wait()
	p.output.file.Close()
	p.running = nil
}

func (p *process) signal(s syscall.Signal) error {
	if p.running == nil {
		return errors.New("the process does not run")
	}
	return p.running.Process.Signal(s)
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package robustness

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// fault is something that goes wrong, for a while.
type fault struct {
	name  string
	begin func() error
	end   func() error
}

// on lets a fault last for a time.
func (f fault) on(ctx context.Context, d time.Duration) error {
	if err := f.begin(); err != nil {
		return fmt.Errorf("%s: %w", f.name, err)
	}
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	if err := f.end(); err != nil {
		return fmt.Errorf("the end of %s: %w", f.name, err)
	}
	return nil
}

// dies kills processes, which then start again.
func dies(what string, s syscall.Signal, all ...*process) fault {
	return fault{name: what, begin: func() error {
		for _, p := range all {
			p.end(s)
		}
		return nil
	}, end: func() error {
		for _, p := range all {
			if err := p.start(); err != nil {
				return err
			}
		}
		return nil
	}}
}

// stops stops a process, which then goes on.
func stops(what string, p *process) fault {
	return fault{name: what, begin: func() error { return p.signal(syscall.SIGSTOP) }, end: func() error { return p.signal(syscall.SIGCONT) }}
}

// limps lets a process run for moments only.
func limps(what string, p *process) fault {
	stop := make(chan struct{})
	var limping sync.WaitGroup
	return fault{name: what, begin: func() error {
		limping.Go(func() { limp(p, stop) })
		return nil
	}, end: func() error {
		close(stop)
		limping.Wait()
		return p.signal(syscall.SIGCONT)
	}}
}

func limp(p *process, stop <-chan struct{}) {
	for s := syscall.SIGSTOP; ; {
		_ = p.signal(s) // the process runs: its end is this goroutine's end
		pause := 5 * time.Millisecond
		if s == syscall.SIGSTOP {
			pause = 60 * time.Millisecond
		}
		select {
		case <-time.After(pause):
		case <-stop:
			return
		}
		s = syscall.SIGSTOP + syscall.SIGCONT - s
	}
}

// slowDisk lets each sync of a process's files take long.
func slowDisk(what string, p *process) fault {
	strace := exec.Command("strace", "-f", "-qq", "-o", "/dev/null", "-e", "trace=fdatasync,fsync",
		"-e", "inject=fdatasync,fsync:delay_enter=50000") // µs
	return fault{name: what, begin: func() error {
		strace.Args = append(strace.Args, "-p", fmt.Sprint(p.running.Process.Pid))
		return strace.Start()
	}, end: func() error {
		err := strace.Process.Signal(syscall.SIGTERM)
		_ = strace.Wait()
		return err
	}}
}

// loses lets a machine lose packets.
func loses(what string, m *machine, in, out []string) fault {
	return fault{name: what, begin: func() error { return m.drop(in, out) }, end: m.heal}
}

// slowLink lets a machine send little, so that packets queue for up to 400 ms, and get lost when they are too many.
func slowLink(what string, m *machine) fault {
	qdisc := func(args string) error { return m.do("", strings.Fields("tc qdisc "+args)...) }
	return fault{name: what, begin: func() error { return qdisc("add dev eth0 root tbf rate 600kbit burst 5kb latency 400ms") },
		end: func() error { return qdisc("del dev eth0 root") }}
}

// faults are those of a cluster with etcd, of which one is chosen. The leader is which member leads, the other one does not.
func (c *cluster) faults(leader int, random *rand.Rand) []fault {
	other := (leader + 1 + random.IntN(2)) % 3
	server := random.IntN(3)
	at := c.network.machines[server]
	var rest []string
	for i, m := range c.network.machines {
		if i != server {
			rest = append(rest, m.at)
		}
	}
	machines := "{" + strings.Join(rest, ", ") + "}"
	peer := func(what string, m *machine) fault {
		match := []string{"tcp sport 2380", "tcp dport 2380"}
		return loses(what, m, match, match)
	}
	all := []fault{
		dies("kill a member", syscall.SIGKILL, c.members[other]),
		dies("kill the leader", syscall.SIGKILL, c.members[leader]),
		dies("kill two members", syscall.SIGKILL, c.members[leader], c.members[other]),
		dies("kill a server", syscall.SIGKILL, c.servers[server]),
		dies("stop a server cleanly", syscall.SIGTERM, c.servers[server]),
		dies("kill a server and its member", syscall.SIGKILL, c.servers[server], c.members[server]),
		stops("stop a member", c.members[other]),
		stops("stop the leader", c.members[leader]),
		stops("stop a server", c.servers[server]),
		limps("a slow member", c.members[other]),
		limps("a slow leader", c.members[leader]),
		limps("a slow server", c.servers[server]),
		peer("split off a member", c.network.machines[other]),
		peer("split off the leader", c.network.machines[leader]),
		loses("a server without etcd", at, []string{"tcp sport 2379"}, []string{"tcp dport 2379"}),
		loses("a machine that reaches no other one", at, []string{"ip saddr " + machines}, []string{"ip daddr " + machines}),
		loses("a machine that hears no other one", at, []string{"ip saddr " + machines}, nil),
		loses("a machine that vanishes", at, []string{`iifname "eth0"`}, []string{`oifname "eth0"`}),
		slowLink("a slow link of a machine", at),
		slowLink("a slow link of the leader", c.network.machines[leader]),
	}
	if _, err := exec.LookPath("strace"); !errors.Is(err, exec.ErrNotFound) {
		all = append(all, slowDisk("a slow disk of the leader", c.members[leader]), slowDisk("a slow disk of a member", c.members[other]))
	}
	return all
}

// faultsAlone are those of a server with a store of its own.
func (c *cluster) faultsAlone() []fault {
	s, m := c.servers[0], c.network.machines[0]
	return []fault{
		dies("kill the server", syscall.SIGKILL, s),
		dies("stop the server cleanly", syscall.SIGTERM, s),
		stops("stop the server", s),
		limps("a slow server", s),
		loses("a machine that vanishes", m, []string{`iifname "eth0"`}, []string{`oifname "eth0"`}),
		loses("a machine that is not heard", m, nil, []string{`oifname "eth0"`}),
		slowLink("a slow link", m),
	}
}

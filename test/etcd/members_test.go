// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/mortise-dev/mortise/internal/machine/unshare/unsharetest"
	"github.com/mortise-dev/mortise/test/programs"
)

// limit is how long anything may take.
const limit = time.Minute

// builtIn names the folder of the programs to a process of the test that is alone.
const builtIn = "MORTISE_TEST_PROGRAMS"

func TestMain(m *testing.M) {
	switch os.Getenv(unsharetest.Variable) {
	case "init":
		os.Exit(unsharetest.Init())
	case "test":
		os.Args = append(os.Args, "-programs="+os.Getenv(builtIn))
	}
	os.Exit(programs.Main(m,
		programs.Program{In: ".", Mod: "server.mod", Name: "etcd", Package: "go.etcd.io/etcd/server/v3"},
		programs.Program{In: ".", Mod: "server.mod", Name: "etcdutl", Package: "go.etcd.io/etcd/etcdutl/v3"},
		programs.Program{In: ".", Mod: "server.mod", Name: "etcdctl", Package: "go.etcd.io/etcd/etcdctl/v3"},
		programs.Mortise,
	))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// members is an etcd cluster.
type members struct {
	dir   string
	flags []string // of every member
	peers []string // URLs
	urls  []string // for clients
	procs []*exec.Cmd
	old   map[int]string // members that another program is, by its path
}

// launch starts an empty cluster of n members, and does not wait for it.
func launch(t testing.TB, n int, flags ...string) *members {
	t.Helper()
	c := unstarted(t, n, flags...)
	for i := range n {
		c.start(t, i)
	}
	return c
}

// unstarted returns an empty cluster of n members.
func unstarted(t testing.TB, n int, flags ...string) *members {
	t.Helper()
	dir, err := os.MkdirTemp("", "etcd-members-")
	must(t, err)
	c := &members{dir: dir, flags: flags, procs: make([]*exec.Cmd, n)}
	for range n {
		// A loopback address of its own, so that no other program's connection has taken a port.
		host := fmt.Sprintf("127.%d.%d.%d", 64+rand.IntN(128), rand.IntN(256), 1+rand.IntN(254))
		c.peers, c.urls = append(c.peers, "http://"+host+":2380"), append(c.urls, "http://"+host+":2379")
	}
	return c
}

func (c *members) data(i int) string { return filepath.Join(c.dir, fmt.Sprint("m", i)) }

// start starts a member, also again.
func (c *members) start(t testing.TB, i int) {
	t.Helper()
	var cluster []string
	for j, peer := range c.peers {
		cluster = append(cluster, fmt.Sprintf("m%d=%s", j, peer))
	}
	cmd := exec.Command(cmp.Or(c.old[i], programs.Path("etcd")), append([]string{
		"--name", fmt.Sprint("m", i), "--data-dir", c.data(i), "--log-level", "error", "--logger", "zap",
		"--listen-peer-urls", c.peers[i], "--initial-advertise-peer-urls", c.peers[i],
		"--listen-client-urls", c.urls[i], "--advertise-client-urls", c.urls[i],
		"--initial-cluster", strings.Join(cluster, ","), "--initial-cluster-state", "new",
		"--heartbeat-interval", "50", "--election-timeout", "500", "--unsafe-no-fsync",
	}, c.flags...)...)
	log, err := os.OpenFile(c.data(i)+".log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	c.procs[i] = cmd
}

// kill kills a member at once.
func (c *members) kill(i int) {
	if p := c.procs[i]; p != nil {
		_ = p.Process.Kill()
		_ = p.Wait()
		c.procs[i] = nil
	}
}

// signal sends a signal to a member.
func (c *members) signal(t testing.TB, i int, s syscall.Signal) {
	t.Helper()
	must(t, c.procs[i].Process.Signal(s))
}

// remove ends all members and deletes their data.
func (c *members) remove() {
	for i := range c.procs {
		c.kill(i)
	}
	_ = os.RemoveAll(c.dir)
}

// client returns a client of all members.
func (c *members) client(t testing.TB) *clientv3.Client {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: c.urls, Logger: zap.NewNop(), MaxUnaryRetries: 1000})
	must(t, err)
	return client
}

// ready waits until the cluster answers.
func (c *members) ready(t testing.TB) *members {
	t.Helper()
	client := c.client(t)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for {
		_, err := client.Get(ctx, "a")
		if err == nil {
			return c
		}
		if ctx.Err() != nil {
			var logs bytes.Buffer
			for i := range c.procs {
				log, _ := os.ReadFile(c.data(i) + ".log")
				logs.Write(log)
			}
			t.Fatalf("etcd does not answer: %v\n%s", err, logs.String())
		}
	}
}

// leader returns which member leads.
func (c *members) leader(t testing.TB) int {
	t.Helper()
	client := c.client(t)
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for i := 0; ; i = (i + 1) % len(c.urls) {
		if ctx.Err() != nil {
			t.Fatal("no member leads")
		}
		if c.procs[i] == nil {
			continue
		}
		if s, err := client.Status(ctx, c.urls[i]); err == nil && s.Leader == s.Header.MemberId {
			return i
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/mortise-dev/mortise/internal/serverset"
	"github.com/mortise-dev/mortise/test/programs"
)

// inside names the environment variable of a test that runs in a network namespace of its own.
const inside = "MORTISE_TEST_INSIDE"

// strict names the environment variable that makes the bounds of times those of the documentation. Without it they are longer, for machines
// that do other work.
const strict = "MORTISE_TEST_STRICT"

// within reports a time, and fails a test if it is longer than the bound.
func within(t *testing.T, what string, took, bound time.Duration) {
	t.Helper()
	t.Logf("%s: %d ms", what, took.Milliseconds())
	if os.Getenv(strict) == "" {
		bound *= 8
	}
	if took > bound {
		t.Errorf("%s: %s, want at most %s", what, took, bound)
	}
}

// alone runs the test in a network namespace of its own, with more addresses on its loopback interface, and reports whether this process is
// in it.
func alone(t *testing.T, addresses ...string) bool {
	t.Helper()
	if os.Getenv(inside) == t.Name() {
		for _, args := range append([][]string{{"link", "set", "lo", "up"}}, adding(addresses)...) {
			if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
				t.Fatalf("ip %v: %v\n%s", args, err, out)
			}
		}
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-programs="+programs.Dir())
	cmd.Env = append(os.Environ(), inside+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("in a network namespace: %v", err)
	}
	return false
}

func adding(addresses []string) (out [][]string) {
	for _, at := range addresses {
		out = append(out, []string{"address", "add", at + "/32", "dev", "lo"})
	}
	return out
}

// trio is three servers on one etcd.
type trio struct {
	test    *testing.T
	members *members
	at      []string // addresses
	dirs    []string
	servers []*server
	led     map[string]string // who held the Leases when the first server was killed
}

// start starts a server, also again; it ends with the whole test.
func (c *trio) start(i int) {
	c.test.Helper()
	s, err := start(c.test, c.dirs[i], "--store", "etcd", "--etcd-servers", strings.Join(c.members.urls, ","), "--listen", c.at[i]+":6443",
		"--advertise-address", c.at[i], "--leader-elect-lease-duration", "6s", "--leader-elect-renew-deadline", "4s")
	must(c.test, err)
	c.servers[i] = s
}

// begin starts the three servers, and waits until the first one's kubeconfig names the others.
func begin(t *testing.T, c *trio) {
	t.Helper()
	for i := range c.at {
		c.dirs = append(c.dirs, t.TempDir())
		if i > 0 {
			share(t, c.dirs[0], c.dirs[i])
		}
		c.servers = append(c.servers, nil)
		c.start(i)
	}
	published(t, c.servers[0], c.at...)
	for began := time.Now(); ; {
		text, err := os.ReadFile(c.kubeconfig())
		must(t, err)
		if bytes.Contains(text, []byte(c.at[1])) && bytes.Contains(text, []byte(c.at[2])) {
			return
		}
		if time.Since(began) > limit {
			t.Fatalf("the kubeconfig names not all servers:\n%s", text)
		}
		c.servers[0].ask(t, http.MethodGet, "/readyz", "", nil)
	}
}

func (c *trio) kubeconfig() string { return filepath.Join(c.dirs[0], "kubeconfig") }

// share copies what all servers of a cluster have in common from one data directory to another.
func share(t *testing.T, from, to string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Join(to, "pki"), 0o700))
	for _, name := range []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key"} {
		text, err := os.ReadFile(filepath.Join(from, "pki", name))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(to, "pki", name), text, 0o600))
	}
}

// writer is a client that creates objects, one after the other.
type writer struct {
	name   string
	client *http.Client

	mu      sync.Mutex
	at      string   // the server of the last request
	written []string // what was acknowledged
	retries int
	longest time.Duration
}

// load is clients that write.
type load struct {
	retry   atomic.Bool   // a request that fails may be sent once again
	wrote   chan struct{} // holds a token after a write
	stop    context.CancelFunc
	running sync.WaitGroup
	writers []*writer
}

// write starts n writers.
func write(t *testing.T, c *trio, n int) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{stop: cancel, wrote: make(chan struct{}, 1)}
	base := c.servers[0].client.Transport.(*http.Transport).TLSClientConfig
	for i := range n {
		set := serverset.New(c.at[0] + ":6443")
		set.Learn([]string{c.at[0] + ":6443", c.at[1] + ":6443", c.at[2] + ":6443"})
		tr := &http.Transport{ForceAttemptHTTP2: true}
		tr.DialTLSContext = set.DialTLS(func() *tls.Config {
			config := base.Clone()
			config.NextProtos = []string{"h2"}
			return config
		}, nil)
		w := &writer{name: fmt.Sprint("w", i), client: &http.Client{Transport: tr, Timeout: limit}}
		l.writers = append(l.writers, w)
		l.running.Go(func() {
			defer tr.CloseIdleConnections()
			for n := 0; ctx.Err() == nil; n++ {
				w.one(t, l, fmt.Sprintf("%s-%d", w.name, n))
				select {
				case l.wrote <- struct{}{}:
				default:
				}
			}
		})
	}
	return l
}

// one creates an object.
func (w *writer) one(t *testing.T, l *load, name string) {
	began := time.Now()
	err := w.create(name, http.StatusCreated)
	again := err != nil && l.retry.Load()
	if again {
		first := err
		if err = w.create(name, http.StatusCreated, http.StatusConflict); err != nil { // the first one may have been carried out
			err = errors.Join(first, err)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.longest = max(w.longest, time.Since(began))
	if again {
		w.retries++
	}
	if err != nil {
		t.Errorf("create %s: %v", name, err)
		return
	}
	w.written = append(w.written, name)
}

func (w *writer) create(name string, accept ...int) error {
	body, err := json.Marshal(named(name, map[string]any{"data": map[string]any{"a": strings.Repeat("x", 200)}}))
	if err != nil {
		return err
	}
	ctx := httptrace.WithClientTrace(context.Background(), &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.at, _, _ = net.SplitHostPort(i.Conn.RemoteAddr().String())
	}})
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://cluster/api/v1/namespaces/default/configmaps", bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	response, err := w.client.Do(r)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err == nil && !slices.Contains(accept, response.StatusCode) {
		err = fmt.Errorf("%s %s", response.Status, text)
	}
	return err
}

// reset forgets the retries and the longest wait, and returns them.
func (l *load) reset() (retries int, longest time.Duration) {
	for _, w := range l.writers {
		w.mu.Lock()
		retries, longest = retries+w.retries, max(longest, w.longest)
		w.retries, w.longest = 0, 0
		w.mu.Unlock()
	}
	return retries, longest
}

// until waits until a condition of the writers holds, which it asks after writes.
func (l *load) until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for late := time.After(limit); !holds(); {
		select {
		case <-l.wrote:
		case <-late:
			t.Fatalf("%s: not within %s", what, limit)
		}
	}
}

// where counts the writers by the server that they use.
func (l *load) where() map[string]int {
	out := map[string]int{}
	for _, w := range l.writers {
		w.mu.Lock()
		out[w.at]++
		w.mu.Unlock()
	}
	return out
}

// holder returns who holds the Lease of the controllers, as a server shows it.
func holder(t *testing.T, s *server, name string) string {
	t.Helper()
	_, got := s.ask(t, http.MethodGet, "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/"+name, "", nil)
	out, _ := field(got, "spec", "holderIdentity").(string)
	return out
}

// TestThreeServers: 20 clients write to three servers on three members of etcd. A server that is killed costs no client more than one
// retry, and clients, kubectl, a node and the endpoints leave it within a second; connections are spread again when it returns. When
// etcd's leader is killed, the first write comes at most a second after the election. When one server after the other stops and starts, no
// request fails, and controllers and scheduler go on within two seconds.
func TestThreeServers(t *testing.T) {
	at := []string{"192.0.2.11", "192.0.2.12", "192.0.2.13"}
	if !alone(t, at...) {
		return
	}
	c := &trio{test: t, members: launch(t, 3).ready(t), at: at}
	defer c.members.remove()
	begin(t, c)
	node := joinNode(t, c)
	l := write(t, c, 20)
	defer l.running.Wait()
	defer l.stop()
	l.until(t, "all servers have clients", func() bool { return len(l.where()) == 3 })

	l.retry.Store(true)
	t.Run("kill a server", func(t *testing.T) { killServer(t, c, l, node) })
	t.Run("it returns", func(t *testing.T) {
		c.start(0)
		published(t, c.servers[1], c.at...)
		began := time.Now()
		l.until(t, "clients come back", func() bool { return l.where()[c.at[0]] > 0 })
		t.Logf("the server has clients again after %d ms: %v", time.Since(began).Milliseconds(), l.where())
	})
	t.Run("kill the leader of etcd", func(t *testing.T) { killLeader(t, c, l) })
	t.Run("a machine vanishes", func(t *testing.T) { vanish(t, c, l) })
	l.retry.Store(false)
	t.Run("upgrade", func(t *testing.T) { upgrade(t, c, l) })

	l.stop()
	l.running.Wait()
	_, list := c.servers[2].ask(t, http.MethodGet, "/api/v1/namespaces/default/configmaps", "", nil)
	stored := map[any]bool{}
	for _, item := range list["items"].([]any) {
		stored[field(item.(map[string]any), "metadata", "name")] = true
	}
	all := 0
	for _, w := range l.writers {
		for _, name := range w.written {
			if all++; !stored[name] {
				t.Errorf("%s was acknowledged and is lost", name)
			}
		}
	}
	t.Logf("%d writes were acknowledged, and none is lost", all)
}

// joinNode starts a node without containers that joins by the first server, and returns the path of its kubeconfig when it names all
// servers.
func joinNode(t *testing.T, c *trio) string {
	t.Helper()
	token, err := exec.Command(programs.Path("mortise"), "token", "create", "--kubeconfig", c.kubeconfig()).Output()
	must(t, err)
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	must(t, err)
	cmd := exec.Command(programs.Path("mortise"), "node", "--join", "https://"+c.at[0]+":6443", "--token", strings.TrimSpace(string(token)),
		"--data-dir", dir, "--node", "simulated", "--name", "n", "--log-level", "info", "--ca-file", filepath.Join(c.dirs[0], "pki", "ca.crt"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		if text, _ := os.ReadFile(log.Name()); t.Failed() {
			t.Logf("the node: %s", text)
		}
	})
	kubeconfig := filepath.Join(dir, "node", "kubelet.conf")
	until(t, "the node knows all servers", func() bool {
		c.servers[0].ask(t, http.MethodGet, "/readyz", "", nil)
		text, _ := os.ReadFile(kubeconfig) // it may not have joined yet
		return bytes.Contains(text, []byte(c.at[1])) && bytes.Contains(text, []byte(c.at[2]))
	})
	return kubeconfig
}

// runs creates a pod on the node at a server and returns how long it takes to run.
func runs(t *testing.T, s *server, name string) time.Duration {
	t.Helper()
	const pods = "/api/v1/namespaces/default/pods"
	began := time.Now()
	s.create(t, pods, named(name, map[string]any{"spec": map[string]any{"nodeName": "n",
		"containers": []any{map[string]any{"name": "c", "image": "registry.example/i:1"}}}}))
	until(t, name+" runs", func() bool {
		_, got := s.ask(t, http.MethodGet, pods+"/"+name, "", nil)
		return field(got, "status", "phase") == "Running"
	})
	return time.Since(began)
}

func killServer(t *testing.T, c *trio, l *load, node string) {
	t.Logf("clients at %v; a pod runs after %d ms", l.where(), runs(t, c.servers[1], "before").Milliseconds())
	l.reset()
	c.led = map[string]string{}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		c.led[name] = holder(t, c.servers[1], name)
	}
	c.servers[0].kill()
	killed := time.Now()
	published(t, c.servers[1], c.at[1:]...)
	within(t, "the endpoints are without the server that was killed", time.Since(killed), time.Second)
	began := time.Now()
	out, err := exec.Command(programs.Path("mortise"), "kubectl", "--kubeconfig", c.kubeconfig(), "get", "namespace", "default", "-o", "name").
		CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "namespace/default" {
		t.Errorf("kubectl: %v %s", err, out)
	}
	t.Logf("kubectl answered after %d ms", time.Since(began).Milliseconds())
	within(t, "a pod that was created then runs at a node that had joined by this server", runs(t, c.servers[2], "after"), 2*time.Second)
	l.until(t, "no client is left", func() bool { return l.where()[c.at[0]] == 0 })
	retries, longest := l.reset()
	t.Logf("%d clients sent a request again", retries)
	within(t, "the longest write", longest, time.Second)
	until(t, "the node forgets the dead server", func() bool {
		c.servers[1].ask(t, http.MethodGet, "/readyz", "", nil)
		text, err := os.ReadFile(node)
		must(t, err)
		return bytes.Count(text, []byte(c.at[0])) == 1 // by which it joined
	})
}

// vanish lets a server's machine lose all packets, and the server stand still, as it has no other way to etcd: no connection to it ends.
// Clients other than ours wait for their own timeouts, client-go for 45 seconds.
func vanish(t *testing.T, c *trio, l *load) {
	l.until(t, "the server has clients", func() bool { return l.where()[c.at[0]] > 0 })
	l.reset()
	server := c.servers[0].proc.Process
	filter(t, "table ip vanished { chain out { type filter hook output priority 0; ip daddr "+c.at[0]+" drop; ip saddr "+c.at[0]+" drop; }; }")
	must(t, server.Signal(syscall.SIGSTOP))
	heal := sync.OnceFunc(func() {
		must(t, server.Signal(syscall.SIGCONT))
		filter(t, "delete table ip vanished")
	})
	defer heal()
	vanished := time.Now()
	published(t, c.servers[1], c.at[1:]...)
	within(t, "the endpoints are without the machine that vanished", time.Since(vanished), 4*time.Second)
	l.until(t, "no client is left", func() bool { return l.where()[c.at[0]] == 0 })
	within(t, "all clients have left it", time.Since(vanished), 4*time.Second)
	retries, longest := l.reset()
	t.Logf("%d clients sent a request again", retries)
	within(t, "the longest write", longest, 3*time.Second)
	within(t, "a pod that was created then runs", runs(t, c.servers[2], "vanished"), 4*time.Second)
	began := time.Now()
	out, err := exec.Command(programs.Path("mortise"), "kubectl", "--kubeconfig", c.kubeconfig(), "get", "namespace", "default", "-o", "name").
		CombinedOutput()
	if err != nil || strings.TrimSpace(string(out)) != "namespace/default" {
		t.Errorf("kubectl: %v %s", err, out)
	}
	within(t, "kubectl, whose kubeconfig names the dead server, answers", time.Since(began), 2*time.Second)
	heal()
	began = time.Now()
	published(t, c.servers[1], c.at...)
	t.Logf("it is an endpoint again after %d ms", time.Since(began).Milliseconds())
}

// filter changes the rules of this network namespace.
func filter(t *testing.T, rules string) {
	t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("nft: %v\n%s", err, out)
	}
}

func killLeader(t *testing.T, c *trio, l *load) {
	leader := c.members.leader(t)
	c.members.kill(leader)
	killed := time.Now()
	var first time.Duration
	var writing sync.WaitGroup
	writing.Go(func() {
		c.servers[1].create(t, "/api/v1/namespaces/default/secrets", named("after-the-leader", nil))
		first = time.Since(killed)
	})
	for now := leader; now == leader; now = c.members.leader(t) {
	}
	election := time.Since(killed)
	writing.Wait()
	t.Logf("etcd has a leader after %d ms, the first write came after %d ms", election.Milliseconds(), first.Milliseconds())
	within(t, "the first write after the election", first-election, time.Second)
	c.members.start(t, leader)
	retries, longest := l.reset()
	t.Logf("%d clients sent a request again, the longest write took %d ms", retries, longest.Milliseconds())
}

// upgrade stops and starts one server after the other.
func upgrade(t *testing.T, c *trio, l *load) {
	names := []string{"kube-controller-manager", "kube-scheduler"}
	dead := map[string]string{}
	for _, name := range names {
		dead[name] = c.led[name]
	}
	handed := 0
	for i, s := range c.servers {
		other := c.servers[(i+1)%len(c.servers)]
		led := map[string]string{}
		for _, name := range names { // a server that was killed leads until its Lease expires
			until(t, "a server leads", func() bool { led[name] = holder(t, other, name); return led[name] != "" && led[name] != dead[name] })
		}
		must(t, s.proc.Process.Signal(syscall.SIGTERM))
		asked := time.Now()
		ended := make(chan struct{})
		go func() { defer close(ended); _ = s.proc.Wait() }()
		for name, was := range led {
			var now string
			for open := true; open && now == ""; {
				select {
				case <-ended:
					open = false
				default:
				}
				if h := holder(t, other, name); h != was && h != "" {
					now = h
				}
			}
			if now != "" {
				handed++
				within(t, fmt.Sprintf("server %d stops, and another has the Lease %s", i, name), time.Since(asked), 2*time.Second)
			}
		}
		<-ended
		t.Logf("server %d has stopped after %d ms", i, time.Since(asked).Milliseconds())
		c.start(i)
		published(t, other, c.at...)
		_, longest := l.reset()
		t.Logf("the longest write took %d ms", longest.Milliseconds())
	}
	if handed < len(names) {
		t.Errorf("%d Leases were handed over, want %d at least", handed, len(names))
	}
}

// until asks again until a condition holds.
func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for began := time.Now(); !holds(); {
		if time.Since(began) > limit {
			t.Fatalf("%s: not within %s", what, limit)
		}
	}
}

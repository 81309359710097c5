// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
)

// Upstream is a kube-apiserver, and the etcd that it has alone, if it has one; each is a process.
type Upstream struct {
	Target
	processes
	Ready time.Duration // start of kube-apiserver until it is ready
}

// processes are programs on a directory of their own.
type processes struct {
	dir     string
	running []*exec.Cmd // in the order of their start
}

// StartUpstream starts the programs kube-apiserver and etcd of a directory on empty data directories, and waits until they are ready.
// Clients are authenticated by certificates, as Mortise's are.
func StartUpstream(ctx context.Context, programs string) (*Upstream, error) {
	u := &Upstream{}
	if err := u.make("mortise-bench-peer-"); err != nil {
		return nil, err
	}
	client, err := u.runEtcd(ctx, programs, 1)
	if err == nil {
		err = u.start(ctx, programs, client)
	}
	if err != nil {
		return nil, errors.Join(err, u.Stop())
	}
	return u, nil
}

// StartUpstreamOn starts kube-apiserver on an etcd that runs, below a prefix of its keys. [Upstream] counts its own process alone.
func StartUpstreamOn(ctx context.Context, programs string, etcd *Etcd, prefix string) (*Upstream, error) {
	u := &Upstream{}
	if err := u.make("mortise-bench-peer-"); err != nil {
		return nil, err
	}
	if err := u.start(ctx, programs, etcd.URL, "--etcd-prefix", prefix); err != nil {
		return nil, errors.Join(err, u.Stop())
	}
	return u, nil
}

func (u *Upstream) start(ctx context.Context, programs, etcd string, args ...string) error {
	material, err := serving.LoadOrCreate(filepath.Join(u.dir, "pki"), []string{"127.0.0.1"}, serving.Options{})
	if err != nil {
		return err
	}
	ports, err := freePorts(1)
	if err != nil {
		return err
	}
	pki := func(name string) string { return filepath.Join(u.dir, "pki", name) }
	began := time.Now()
	if err := u.run(ctx, filepath.Join(programs, "kube-apiserver"), append(args, "--etcd-servers", etcd, "--bind-address", "127.0.0.1",
		"--secure-port", fmt.Sprint(ports[0]), "--tls-cert-file", pki("apiserver.crt"), "--tls-private-key-file", pki("apiserver.key"),
		"--client-ca-file", pki("ca.crt"), "--service-account-key-file", pki("sa.key"), "--service-account-signing-key-file", pki("sa.key"),
		"--service-account-issuer", "https://kubernetes.default.svc", "--authorization-mode", "Node,RBAC",
		"--service-cluster-ip-range", "10.96.0.0/16")...); err != nil {
		return err
	}
	u.Pids = u.pids()
	u.Config = &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", ports[0]), TLSClientConfig: rest.TLSClientConfig{
		CAData: material.CA.CertPEM, CertData: material.Admin.CertPEM, KeyData: material.Admin.KeyPEM,
	}}
	err = u.untilReady(ctx)
	u.Ready = time.Since(began)
	return err
}

// Etcd is an etcd for several servers.
type Etcd struct {
	URL string // for clients: of each member, with commas between
	processes
}

// StartEtcd starts the program etcd of a directory on empty data directories, with so many members.
func StartEtcd(ctx context.Context, programs string, members int) (*Etcd, error) {
	e := &Etcd{}
	if err := e.make("mortise-bench-etcd-"); err != nil {
		return nil, err
	}
	var err error
	if e.URL, err = e.runEtcd(ctx, programs, members); err != nil {
		return nil, errors.Join(err, e.Stop())
	}
	return e, nil
}

// Memory is the resident memory of all members, in bytes.
func (e *Etcd) Memory() (int64, error) {
	resident, _, err := (&Target{Pids: e.pids()}).Memory()
	return resident, err
}

// Cpu is the processor time that it has used.
func (e *Etcd) Cpu() (time.Duration, error) { return (&Target{Pids: e.pids()}).Cpu() }

func (p *processes) make(pattern string) (err error) {
	p.dir, err = os.MkdirTemp("", pattern)
	return err
}

func (p *processes) pids() (ids []int) {
	for _, c := range p.running {
		ids = append(ids, c.Process.Pid)
	}
	return ids
}

// runEtcd starts an etcd of some members, and returns the URLs for its clients, which wait for it themselves.
func (p *processes) runEtcd(ctx context.Context, programs string, members int) (urls string, err error) {
	ports, err := freePorts(2 * members)
	if err != nil {
		return "", err
	}
	at := func(i int) string { return fmt.Sprintf("http://127.0.0.1:%d", ports[i]) }
	var clients, cluster []string
	for i := range members {
		clients, cluster = append(clients, at(2*i)), append(cluster, fmt.Sprintf("m%d=%s", i, at(2*i+1)))
	}
	for i := range members {
		name := fmt.Sprint("m", i)
		if err := p.run(ctx, filepath.Join(programs, "etcd"), "--name", name, "--data-dir", filepath.Join(p.dir, name),
			"--listen-client-urls", at(2*i), "--advertise-client-urls", at(2*i), "--listen-peer-urls", at(2*i+1),
			"--initial-advertise-peer-urls", at(2*i+1), "--initial-cluster", strings.Join(cluster, ","),
			"--quota-backend-bytes", "8000000000"); err != nil {
			return "", err
		}
	}
	return strings.Join(clients, ","), nil
}

// run starts a program, whose log goes to a file in the directory of the data.
func (p *processes) run(ctx context.Context, program string, args ...string) error {
	log, err := os.Create(filepath.Join(p.dir, filepath.Base(program)+".log"))
	if err != nil {
		return err
	}
	defer log.Close() // the process has its own
	c := exec.CommandContext(ctx, program, args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.Stdout, c.Stderr = log, log
	if err := c.Start(); err != nil {
		return fmt.Errorf("start %s: %w", filepath.Base(program), err)
	}
	p.running = append(p.running, c)
	return nil
}

// untilReady asks until the server is ready, a minute at most. It has no other way to tell.
func (u *Upstream) untilReady(ctx context.Context) error {
	client, err := u.Target.Client(1)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	limit := time.NewTimer(time.Minute)
	defer limit.Stop()
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		err := Expect(ctx, client, http.StatusOK, "GET", u.Config.Host+"/readyz", "", "")
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-limit.C:
			return fmt.Errorf("start kube-apiserver: not ready within a minute: %w", err)
		case <-again.C:
		}
	}
}

// Stop ends the processes, the last one first, and removes their data.
func (p *processes) Stop() error {
	var errs []error
	for len(p.running) > 0 {
		last := p.running[len(p.running)-1]
		p.running = p.running[:len(p.running)-1]
		errs = append(errs, last.Process.Signal(syscall.SIGTERM))
		_ = last.Wait() // etcd ends with the signal as its status
	}
	return errors.Join(append(errs, os.RemoveAll(p.dir))...)
}

// freePorts finds ports of loopback at which no process listens. Another process may take one before it is used.
func freePorts(n int) (ports []int, err error) {
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find port: %w", err)
		}
		defer l.Close() // after all are found, so that they differ
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

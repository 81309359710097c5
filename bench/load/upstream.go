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
	"syscall"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/apiserver/serving"
)

// Upstream is a kube-apiserver with an etcd of its own, each a process.
type Upstream struct {
	Target
	dir       string
	processes []*exec.Cmd // in the order of their start
}

// StartUpstream starts the programs kube-apiserver and etcd of a directory on empty data directories, and waits until they are ready.
// Clients are authenticated by certificates, as Mortise's are.
func StartUpstream(ctx context.Context, programs string) (*Upstream, error) {
	dir, err := os.MkdirTemp("", "mortise-bench-peer-")
	if err != nil {
		return nil, err
	}
	u := &Upstream{dir: dir}
	if err := u.start(ctx, programs); err != nil {
		return nil, errors.Join(err, u.Stop())
	}
	return u, nil
}

func (u *Upstream) start(ctx context.Context, programs string) error {
	material, err := serving.LoadOrCreate(filepath.Join(u.dir, "pki"), []string{"127.0.0.1"}, serving.Options{})
	if err != nil {
		return err
	}
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	pki := func(name string) string { return filepath.Join(u.dir, "pki", name) }
	if err := u.run(ctx, filepath.Join(programs, "etcd"), "--data-dir", filepath.Join(u.dir, "etcd"), "--listen-client-urls", client,
		"--advertise-client-urls", client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
		"--initial-cluster", "default="+peer); err != nil {
		return err
	}
	if err := u.run(ctx, filepath.Join(programs, "kube-apiserver"), "--etcd-servers", client, "--bind-address", "127.0.0.1",
		"--secure-port", fmt.Sprint(ports[2]), "--tls-cert-file", pki("apiserver.crt"), "--tls-private-key-file", pki("apiserver.key"),
		"--client-ca-file", pki("ca.crt"), "--service-account-key-file", pki("sa.key"), "--service-account-signing-key-file", pki("sa.key"),
		"--service-account-issuer", "https://kubernetes.default.svc", "--authorization-mode", "Node,RBAC",
		"--service-cluster-ip-range", "10.96.0.0/16"); err != nil {
		return err
	}
	u.Config = &rest.Config{Host: fmt.Sprintf("https://127.0.0.1:%d", ports[2]), TLSClientConfig: rest.TLSClientConfig{
		CAData: material.CA.CertPEM, CertData: material.Admin.CertPEM, KeyData: material.Admin.KeyPEM,
	}}
	return u.untilReady(ctx)
}

// run starts a program, whose log goes to a file in the directory of the data.
func (u *Upstream) run(ctx context.Context, program string, args ...string) error {
	log, err := os.Create(filepath.Join(u.dir, filepath.Base(program)+".log"))
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
	u.processes, u.Pids = append(u.processes, c), append(u.Pids, c.Process.Pid)
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
func (u *Upstream) Stop() error {
	var errs []error
	for len(u.processes) > 0 {
		last := u.processes[len(u.processes)-1]
		u.processes = u.processes[:len(u.processes)-1]
		errs = append(errs, last.Process.Signal(syscall.SIGTERM))
		_ = last.Wait() // etcd ends with the signal as its status
	}
	return errors.Join(append(errs, os.RemoveAll(u.dir))...)
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

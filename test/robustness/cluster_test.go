// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package robustness

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/mortise-dev/mortise/test/programs"
)

// cluster is what is tested: servers, on members of etcd or with a store of their own.
type cluster struct {
	dir     string
	network *network
	members []*process // of etcd; none with the store of a data directory
	servers []*process
	tls     *tls.Config // of clients of the API
	etcd    *clientv3.Client
}

// onEtcd starts three servers on three members of etcd, each pair on a machine.
func onEtcd(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{dir: scratch(t), network: build(t, 3)}
	var peers, urls []string
	for i, m := range c.network.machines {
		peers = append(peers, fmt.Sprintf("m%d=http://%s:2380", i, m.at))
		urls = append(urls, "http://"+m.at+":2379")
	}
	for i, m := range c.network.machines {
		c.members = append(c.members, &process{machine: m, log: c.file("etcd", i, "log"), args: []string{programs.Path("etcd"),
			"--name", fmt.Sprint("m", i), "--data-dir", c.file("etcd", i, ""), "--log-level", "error",
			"--listen-peer-urls", "http://" + m.at + ":2380", "--initial-advertise-peer-urls", "http://" + m.at + ":2380",
			"--listen-client-urls", urls[i] + ",http://127.0.0.1:2379", "--advertise-client-urls", urls[i],
			"--initial-cluster", strings.Join(peers, ","), "--heartbeat-interval", "50", "--election-timeout", "500",
		}})
		must(t, c.members[i].start())
	}
	for i, m := range c.network.machines {
		c.servers = append(c.servers, &process{machine: m, log: c.file("server", i, "log"), args: []string{programs.Path("mortise"), "up",
			"--store", "etcd", "--etcd-servers", strings.Join(urls, ","), "--listen", m.at + ":6443", "--advertise-address", m.at,
			"--data-dir", c.file("server", i, ""), "--node", "none", "--controllers", "none",
		}})
	}
	c.begin(t, clientv3.Config{Endpoints: urls})
	return c
}

// onDisk starts a server with the store of its data directory.
func onDisk(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{dir: scratch(t), network: build(t, 1)}
	m := c.network.machines[0]
	c.servers = []*process{{machine: m, log: c.file("server", 0, "log"), args: []string{programs.Path("mortise"), "up",
		"--data-dir", c.file("server", 0, ""), "--listen", m.at + ":6443", "--etcd-listen", m.at + ":2379",
		"--node", "none", "--controllers", "none",
	}}}
	c.begin(t, clientv3.Config{Endpoints: []string{"https://" + m.at + ":2379"}})
	return c
}

// scratch returns a folder in memory, so that a disk that other tests share sets no pace.
func scratch(t *testing.T) string {
	t.Helper()
	parent := "/dev/shm"
	if _, err := os.Stat(parent); err != nil {
		parent = ""
	}
	dir, err := os.MkdirTemp(parent, "mortise-robustness-")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (c *cluster) file(kind string, i int, suffix string) string {
	return filepath.Join(c.dir, strings.TrimSuffix(fmt.Sprintf("%s%d.%s", kind, i, suffix), "."))
}

// begin starts the servers, the first of which makes the keys of all.
func (c *cluster) begin(t *testing.T, of clientv3.Config) {
	t.Helper()
	t.Cleanup(func() {
		for _, p := range append(c.servers, c.members...) {
			p.end(syscall.SIGKILL)
		}
		if c.etcd != nil {
			c.etcd.Close()
		}
		if t.Failed() {
			for i := range c.servers {
				text, _ := os.ReadFile(c.file("server", i, "log"))
				t.Logf("server %d: %s", i, text[max(0, len(text)-4096):])
			}
		}
	})
	for i, s := range c.servers {
		if i > 0 {
			to := filepath.Join(c.file("server", i, ""), "pki")
			must(t, os.MkdirAll(to, 0o700))
			for _, name := range []string{"ca.crt", "ca.key", "front-proxy-ca.crt", "front-proxy-ca.key", "sa.key"} {
				text, err := os.ReadFile(filepath.Join(c.file("server", 0, ""), "pki", name))
				must(t, err)
				must(t, os.WriteFile(filepath.Join(to, name), text, 0o600))
			}
		}
		must(t, s.start())
		if i == 0 {
			must(t, s.ready(t.Context()))
		}
	}
	c.access(t)
	for _, s := range c.servers {
		must(t, s.ready(t.Context()))
	}
	if len(c.members) == 0 {
		pki := filepath.Join(c.file("server", 0, ""), "pki")
		pair, err := tls.LoadX509KeyPair(filepath.Join(pki, "apiserver-etcd-client.crt"), filepath.Join(pki, "apiserver-etcd-client.key"))
		must(t, err)
		text, err := os.ReadFile(filepath.Join(pki, "etcd", "ca.crt"))
		must(t, err)
		of.TLS = &tls.Config{RootCAs: x509.NewCertPool(), Certificates: []tls.Certificate{pair}}
		of.TLS.RootCAs.AppendCertsFromPEM(text)
	}
	of.Logger, of.DialKeepAliveTime, of.DialKeepAliveTimeout = zap.NewNop(), 5*time.Second, time.Second
	var err error
	c.etcd, err = clientv3.New(of)
	must(t, err)
}

// access reads the first server's kubeconfig.
func (c *cluster) access(t *testing.T) {
	t.Helper()
	_, c.tls = programs.Access(t, filepath.Join(c.file("server", 0, ""), "kubeconfig"))
	c.tls.ServerName = "kubernetes.default.svc"
}

// client returns a client of the API with a connection of its own.
func (c *cluster) client() *http.Client {
	return &http.Client{Transport: &http.Transport{TLSClientConfig: c.tls.Clone(), ForceAttemptHTTP2: true}}
}

// url returns the address of a path at a server.
func (c *cluster) url(server int, path string) string {
	return "https://" + c.servers[server].machine.at + ":6443" + path
}

// leader returns which member leads; -1: none is known to.
func (c *cluster) leader(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	for i, m := range c.members {
		if s, err := c.etcd.Status(ctx, "http://"+m.machine.at+":2379"); err == nil && s.Leader == s.Header.MemberId {
			return i
		}
	}
	return -1
}

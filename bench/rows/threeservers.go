// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

const (
	servers    = 3
	restsFor   = 30 // seconds for which a cluster at rest is measured
	nodesReady = "/api/v1/nodes"
)

// cluster is three servers on three members of etcd, each with a third of the nodes.
type cluster struct {
	etcd    *load.Etcd
	servers []*load.Server
	dir     string // of the files that describe the nodes
}

// threeServers is a cluster of simulated nodes on several servers: what its nodes cost at rest, and pods on all of them.
func threeServers(ctx context.Context, b *bench, add adder) (err error) {
	if !isDirectory(b.peer) {
		return errors.New("needs -peer with the directory of etcd")
	}
	c := &cluster{}
	defer func() { err = errors.Join(err, c.stop()) }()
	began := time.Now()
	if err := c.start(ctx, b); err != nil {
		return err
	}
	client, err := c.servers[0].Client(4)
	if err != nil {
		return err
	}
	defer client.CloseIdleConnections()
	host := c.servers[0].Config.Host
	ready := map[string]bool{}
	if err := watchLines(ctx, client, host+nodesReady+"?watch=1&resourceVersion=0", wholeObjects, func(line []byte) (bool, error) {
		n, is, err := nodeIsReady(line)
		if is {
			ready[n] = true
		}
		return len(ready) == b.Nodes, err
	}); err != nil {
		return err
	}
	n := report.Number(float64(b.Nodes))
	add(fmt.Sprintf("%s simulated nodes on %d servers and %d members, exec → all ready", n, servers, servers),
		report.Value{Unit: "s", Number: time.Since(began).Seconds()})
	if err := c.rest(ctx, client, n+" nodes at rest", add); err != nil {
		return err
	}

	// The writes go to another server than the one that watches.
	deployments := "/apis/apps/v1/namespaces/default/deployments"
	rv, err := newest(ctx, client, host+deployments)
	if err != nil {
		return err
	}
	u, err := c.used(ctx, client)
	if err != nil {
		return err
	}
	other, err := c.servers[1].Client(1)
	if err != nil {
		return err
	}
	defer other.CloseIdleConnections()
	took, _, err := timed(ctx, c.servers[0], func(ctx context.Context) error {
		return load.Expect(ctx, other, http.StatusCreated, "POST", c.servers[1].Config.Host+deployments, jsonContent, deployment("all", b.Nodes))
	}, func(ctx context.Context) error {
		return watchRollouts(ctx, client, host+deployments+"?watch=1&resourceVersion="+rv,
			func(r *rollout) bool { return r.Object.Status.AvailableReplicas == b.Nodes })
	})
	if err != nil {
		return err
	}
	after, err := c.used(ctx, client)
	if err != nil {
		return err
	}
	pods := float64(b.Nodes)
	add(fmt.Sprintf("%s pods created, bound and running there", n), report.Value{Unit: "s", Number: took.Seconds()},
		report.Value{Name: "pods", Unit: "/s", Number: pods / took.Seconds()},
		report.Value{Name: "writes a pod", Number: float64(after.revision-u.revision) / pods},
		report.Value{Name: "servers' CPU a pod", Unit: "ms", Number: load.Ms(after.servers-u.servers) / pods},
		report.Value{Name: "etcd's", Unit: "ms", Number: load.Ms(after.etcd-u.etcd) / pods})
	return c.rest(ctx, client, n+" nodes with a pod each at rest", add)
}

// start starts etcd and the servers.
func (c *cluster) start(ctx context.Context, b *bench) (err error) {
	if c.dir, err = os.MkdirTemp("", "mortise-bench-nodes-"); err != nil {
		return err
	}
	if c.etcd, err = load.StartEtcd(ctx, b.peer, servers); err != nil {
		return err
	}
	for i := range servers {
		name := string(rune('a' + i))
		count := (b.Nodes + servers - 1 - i) / servers
		file := filepath.Join(c.dir, name+".yaml")
		if err := os.WriteFile(file, fmt.Appendf(nil, "apiVersion: config.mortise.dev/v1alpha1\nkind: SimulatedNodes\n"+
			"groups: [{namePrefix: %s, count: %d}]\n", name, count), 0o600); err != nil {
			return err
		}
		// An address of its own, by which the servers know each other.
		args := []string{"--store", "etcd", "--etcd-servers", c.etcd.URL, "--listen", fmt.Sprintf("127.0.0.%d:0", i+1),
			"--advertise-address", fmt.Sprintf("127.0.0.%d", i+1), "--node", "simulated", "--simulated-nodes", file,
			"--pod-cidr", fmt.Sprintf("100.%d.0.0/12", 64+16*i)}
		var s *load.Server
		if i == 0 {
			s, err = load.Start(ctx, b.binary, args...)
		} else {
			s, err = load.StartBeside(ctx, b.binary, c.servers[0], args...)
		}
		if err != nil {
			return err
		}
		c.servers = append(c.servers, s)
	}
	return nil
}

func (c *cluster) stop() error {
	var errs []error
	for _, s := range c.servers {
		errs = append(errs, s.Stop())
	}
	if c.etcd != nil {
		errs = append(errs, c.etcd.Stop())
	}
	return errors.Join(append(errs, os.RemoveAll(c.dir))...)
}

// usage is what a cluster has used so far.
type usage struct {
	revision      int64
	servers, etcd time.Duration
}

func (c *cluster) used(ctx context.Context, client *http.Client) (u usage, err error) {
	rv, err := newest(ctx, client, c.servers[0].Config.Host+"/api/v1/namespaces")
	if err != nil {
		return u, err
	}
	if u.revision, err = strconv.ParseInt(rv, 10, 64); err != nil {
		return u, err
	}
	for _, s := range c.servers {
		cpu, err := s.Cpu()
		if err != nil {
			return u, err
		}
		u.servers += cpu
	}
	u.etcd, err = c.etcd.Cpu()
	return u, err
}

// rest measures a cluster in which nothing happens, but that nodes renew their Leases.
func (c *cluster) rest(ctx context.Context, client *http.Client, what string, add adder) error {
	pause := func() error { // a watch that the server itself ends
		return load.Expect(ctx, client, http.StatusOK, "GET",
			fmt.Sprintf("%s/api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=%d", c.servers[0].Config.Host, restsFor), "", "")
	}
	if err := pause(); err != nil {
		return err
	}
	before, err := c.used(ctx, client)
	if err != nil {
		return err
	}
	if err := pause(); err != nil {
		return err
	}
	after, err := c.used(ctx, client)
	if err != nil {
		return err
	}
	values := []report.Value{
		{Name: "writes", Unit: "/s", Number: float64(after.revision-before.revision) / restsFor},
		{Name: "CPU of the three servers", Unit: "ms/s", Number: load.Ms(after.servers-before.servers) / restsFor},
		{Name: "of the members", Unit: "ms/s", Number: load.Ms(after.etcd-before.etcd) / restsFor},
	}
	const mb = 1 << 20
	for i, s := range c.servers {
		resident, _, err := s.Memory()
		if err != nil {
			return err
		}
		values = append(values, report.Value{Name: fmt.Sprintf("memory of server %d", i+1), Unit: "MB", Number: float64(resident) / mb})
	}
	resident, err := c.etcd.Memory()
	add(what, append(values, report.Value{Name: "of the members", Unit: "MB", Number: float64(resident) / mb})...)
	return err
}

// nodeIsReady reads an event of a watch of nodes.
func nodeIsReady(line []byte) (name string, is bool, err error) {
	var e struct {
		Object struct {
			Metadata struct{ Name string }
			Status   struct {
				Conditions []struct{ Type, Status string }
			}
		}
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return "", false, fmt.Errorf("read event: %w", err)
	}
	for _, c := range e.Object.Status.Conditions {
		is = is || c.Type == "Ready" && c.Status == "True"
	}
	return e.Object.Metadata.Name, is, nil
}

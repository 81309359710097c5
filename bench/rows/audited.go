// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
)

// The server's settings for the row: level Metadata for all users' requests, both stages of each, and a user with rights
// from a role.
const (
	metadataPolicy = `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}`
	benchToken     = "bench-token"
	benchUsers     = benchToken + ",bench,bench-uid,\"benchers\"\n"
	benchBinding   = `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"bench"},"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"system:aggregate-to-edit"},"subjects":[{"apiGroup":"rbac.authorization.k8s.io","kind":"Group","name":"benchers"}]}`
)

// auditRounds is how often the two servers take turns: what else the machine does meanwhile falls upon both.
const auditRounds = 5

// audited measures the cost of roles and an audit log for creates: two servers take turns, one that allows everything and
// records nothing, one that evaluates roles and records every request.
func audited(ctx context.Context, b *bench, add adder) (err error) {
	dir, err := os.MkdirTemp("", "mortise-bench-audit-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	tokens, policy, log := filepath.Join(dir, "tokens.csv"), filepath.Join(dir, "policy.json"), filepath.Join(dir, "audit.log")
	if err := errors.Join(os.WriteFile(tokens, []byte(benchUsers), 0o600), os.WriteFile(policy, []byte(metadataPolicy), 0o600)); err != nil {
		return err
	}
	common := append(slices.Clone(load.Bare), "--token-auth-file", tokens)
	plain, err := turn(ctx, b, append(common, "--authorization-mode", "AlwaysAllow"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.server.Stop()) }()
	full, err := turn(ctx, b, append(common, "--authorization-mode", "Node,RBAC", "--audit-policy-file", policy, "--audit-log-path", log))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, full.server.Stop()) }()
	for range auditRounds {
		for _, t := range []*turns{plain, full} {
			if err := t.create(ctx, b.length()/2); err != nil {
				return err
			}
		}
	}
	without, with := middle(plain.results), middle(full.results)
	add("creates of 1 KB, 16 clients, no roles and no audit", without.Values(report.Bound{}, report.Bound{})...)
	add("the same with RBAC and audit (Metadata, log)",
		with.Values(report.Bound{Limit: 0.9 * without.Rate, Budgeted: true, Least: true}, report.Bound{})...)
	add("  throughput of that without; CPU of that without", report.Value{Number: with.Rate / without.Rate},
		report.Value{Name: "CPU", Number: with.Cpu / without.Cpu})
	info, err := os.Stat(log)
	if err != nil {
		return err
	}
	if info.Size() == 0 {
		return errors.New("measure audit: the log is empty")
	}
	return nil
}

// turns are a server's loops of creates.
type turns struct {
	server  *load.Server
	user    load.Target
	base    string
	serial  atomic.Int64
	results []load.Result
}

func turn(ctx context.Context, b *bench, args []string) (_ *turns, err error) {
	s, err := load.Start(ctx, b.binary, args...)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Stop())
		}
	}()
	t := &turns{server: s, user: s.Target}
	ns, err := s.Namespace(ctx)
	if err != nil {
		return nil, err
	}
	t.base = s.Config.Host + "/api/v1/namespaces/" + ns + "/configmaps"
	client, err := s.Client(1)
	if err != nil {
		return nil, err
	}
	if err := load.Expect(ctx, client, http.StatusCreated, "POST", s.Config.Host+"/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
		"application/json", benchBinding); err != nil {
		return nil, err
	}
	t.user.Config = rest.AnonymousClientConfig(s.Config)
	t.user.Config.BearerToken = benchToken
	return t, nil
}

func (t *turns) create(ctx context.Context, length time.Duration) error {
	r, err := load.Loop(ctx, &t.user, 16, length, func(ctx context.Context, client *http.Client) error {
		return load.Expect(ctx, client, http.StatusCreated, "POST", t.base, "application/json",
			configMap(fmt.Sprint("c-", t.serial.Add(1)), kilobyte))
	})
	t.results = append(t.results, r)
	return err
}

// middle is the median of each number.
func middle(rs []load.Result) load.Result {
	of := func(get func(load.Result) float64) float64 {
		all := make([]float64, len(rs))
		for i, r := range rs {
			all[i] = get(r)
		}
		slices.Sort(all)
		return all[len(all)/2]
	}
	return load.Result{
		Rate: of(func(r load.Result) float64 { return r.Rate }), Cpu: of(func(r load.Result) float64 { return r.Cpu }),
		P50: of(func(r load.Result) float64 { return r.P50 }), P99: of(func(r load.Result) float64 { return r.P99 }),
	}
}

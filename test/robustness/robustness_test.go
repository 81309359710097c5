// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package robustness

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"
)

// The environment variables that set how many seeds run, and which is the first.
const seeds, first = "MORTISE_ROBUSTNESS_SEEDS", "MORTISE_ROBUSTNESS_FIRST"

// clients and watchers of a seed, and acknowledged writes before and after each of its faults.
const clients, watchers, some = 5, 3, 20

func setting(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	must(t, err)
	return n
}

// TestEtcd: what clients of three servers on three members of etcd do and see is linearizable, no acknowledged write is lost, and watches
// miss, double and disorder no event, while members, servers and the network between them fail.
func TestEtcd(t *testing.T) {
	t.Parallel()
	if alone(t) {
		run(t, onEtcd(t), 3)
	}
}

// TestLocal: so it is with one server that has the store in its data directory.
func TestLocal(t *testing.T) {
	t.Parallel()
	if alone(t) {
		run(t, onDisk(t), 2)
	}
}

// run runs the seeds.
func run(t *testing.T, c *cluster, otherwise int) {
	n, from := setting(t, seeds, otherwise), setting(t, first, 1)
	began := time.Now()
	operations, events, unknown := 0, 0, 0
	for seed := from; seed < from+n && !t.Failed(); seed++ {
		h := c.seed(t, uint64(seed))
		operations += len(h.Operations)
		for _, o := range h.Operations {
			if o.Outcome == Unknown {
				unknown++
			}
		}
		for _, w := range h.Watches {
			events += len(w.Notes)
		}
		t.Logf("%d of %d seeds in %s: %d operations, %d of them with an unknown outcome, and %d notes of watches", seed-from+1, n,
			time.Since(began).Round(time.Second), operations, unknown, events)
	}
}

// seed runs one seed in a namespace of its own.
func (c *cluster) seed(t *testing.T, seed uint64) History {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*limit)
	defer cancel()
	random := rand.New(rand.NewPCG(seed, 1<<32))
	r := &recorder{test: t, cluster: c, namespace: fmt.Sprint("seed-", seed), began: time.Now(), told: make(chan struct{})}
	driver := newClient(r, clients+watchers, seed)
	defer driver.close()
	base := driver.namespaced(ctx)

	end := map[string]*last{}
	var watching, working sync.WaitGroup
	for i := range watchers {
		w := Watch{Client: clients + i, After: base}
		if i == 0 {
			w.Name = "k1"
		}
		if end[w.Name] == nil {
			end[w.Name] = &last{written: make(chan struct{})}
		}
		watching.Go(func() { r.watch(w, seed, end[w.Name]) })
	}
	stop := make(chan struct{})
	for i := range clients {
		working.Go(func() { newClient(r, i, seed).run(stop) })
	}
	err := r.await(some)
	for range 1 + random.IntN(2) {
		if err != nil {
			break
		}
		var f fault
		if f, err = c.choose(ctx, random); err != nil {
			break
		}
		began := time.Now()
		err = f.on(ctx, time.Duration(100+random.IntN(1100))*time.Millisecond)
		lasted := time.Since(began)
		if err == nil {
			err = r.await(some)
		}
		t.Logf("seed %d: %s for %d ms, %d writes until %d ms", seed, f.name, lasted.Milliseconds(), some, time.Since(began).Milliseconds())
	}
	close(stop)
	working.Wait()
	if err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	// The end, which also shows to each server what it may have missed.
	for _, s := range c.servers {
		must(t, s.ready(ctx))
	}
	for server := range c.servers {
		driver.surely(ctx, server, Operation{Verb: List})
	}
	end["k1"].revision = driver.surely(ctx, 0, Operation{Verb: Put, Name: "k1", Value: "end"},
		Operation{Verb: Create, Name: "k1", Value: "end-1"})
	end[""].revision = driver.surely(ctx, 0, Operation{Verb: Create, Name: "end", Value: "end-2"})
	for _, l := range end {
		close(l.written)
	}
	watching.Wait()
	r.history.Log, err = r.log(ctx, base, end[""].revision)
	must(t, err)
	if err := Judge(r.history); err != nil {
		t.Errorf("seed %d: %v; the history is in %s", seed, err, keep(t, seed, r.history))
	}
	return r.history
}

// choose returns a fault for which the cluster is in a state to bear it: etcd has a leader, and all servers run.
func (c *cluster) choose(ctx context.Context, random *rand.Rand) (fault, error) {
	for _, s := range c.servers {
		if err := s.ready(ctx); err != nil {
			return fault{}, err
		}
	}
	if len(c.members) == 0 {
		all := c.faultsAlone()
		return all[random.IntN(len(all))], nil
	}
	leader := c.leader(ctx)
	for leader < 0 {
		if ctx.Err() != nil {
			return fault{}, ctx.Err()
		}
		leader = c.leader(ctx)
	}
	all := c.faults(leader, random)
	return all[random.IntN(len(all))], nil
}

// namespaced creates the namespace, and returns a resourceVersion at which it is empty.
func (c *client) namespaced(ctx context.Context) int64 {
	body := map[string]any{"metadata": map[string]any{"name": c.namespace}}
	for ctx.Err() == nil {
		if a, err := c.ask(ctx, 0, http.MethodPost, "/api/v1/namespaces", "application/json", body); err != nil ||
			a.code != http.StatusCreated && a.code != http.StatusConflict {
			c.anew(0)
			continue
		}
		a, err := c.ask(ctx, 0, http.MethodGet, c.path(), "", nil)
		if err != nil || a.code != http.StatusOK {
			c.anew(0)
			continue
		}
		base, err := number(a.Metadata.ResourceVersion)
		must(c.test, err)
		return base
	}
	c.test.Fatalf("the namespace is not created: %v", ctx.Err())
	return 0
}

// surely sends requests until one is done, and returns its revision.
func (c *client) surely(ctx context.Context, server int, requests ...Operation) int64 {
	for n := 0; ctx.Err() == nil; n++ {
		o := requests[n%len(requests)]
		if o.Client = c.id; o.Value != "" {
			o.Value = fmt.Sprintf("%s-%d", o.Value, n) // each has a value of its own
		}
		c.one(server, o, 5*time.Second)
		c.mu.Lock()
		for i := len(c.history.Operations) - 1; i >= 0; i-- {
			if done := c.history.Operations[i]; done.Verb == o.Verb && done.Name == o.Name && done.Value == o.Value && done.Client == c.id &&
				done.Server == fmt.Sprint(server) && done.Outcome == Done {
				c.mu.Unlock()
				return done.Revision
			}
		}
		c.mu.Unlock()
	}
	c.test.Fatalf("%s: not done: %v", describe(requests[0]), ctx.Err())
	return 0
}

// keep writes a history that breaks a promise to a file.
func keep(t *testing.T, seed uint64, h History) string {
	t.Helper()
	text, err := json.MarshalIndent(h, "", " ")
	must(t, err)
	file := filepath.Join(os.TempDir(), fmt.Sprintf("mortise-history-%d.json", seed))
	must(t, os.WriteFile(file, text, 0o600))
	return file
}

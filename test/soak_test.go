// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"flag"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
)

var (
	soak = flag.Duration("soak", 12*time.Second, "how long TestSoak goes on")
	seed = flag.Uint64("soak.seed", uint64(time.Now().UnixNano()), "what decides TestSoak's choices")
)

const (
	soakRegisters = 24  // ConfigMaps that all writers fight for
	soakWriters   = 8   // who fight for them
	tailLength    = 40  // lines of history that a failure prints
	leastWrites   = 50  // acknowledged before a kill
	mostWrites    = 900 // likewise
)

// TestSoak mixes all verbs from many clients, kills the server with SIGKILL at random, starts it again on the same data, over
// and over, and then judges what was said:
//
//   - each object's history is linearizable, across the kill too: nothing acknowledged is lost, nothing is done twice;
//   - resourceVersions are given once, and grow;
//   - a watch that is resumed, after a kill too, shows each write once, in order, and nothing that was not asked for;
//   - a list, in whatever pages, is the state of one moment;
//   - two never create one name, and no two Services have one address or port;
//   - trial runs leave nothing, status and spec do not overwrite each other, a definition serves as soon as it is made.
//
// The seed decides what is tried; what comes of it depends on timing too.
func TestSoak(t *testing.T) {
	if _, err := binary(); err != nil { // building it is not part of the time
		t.Fatal(err)
	}
	random := rand.New(rand.NewPCG(*seed, 1))
	s := &soaking{t: t, began: time.Now(), owned: newOwned(), begun: map[string]register{}}
	s.forget()
	dir := filepath.Join(t.TempDir(), "data")
	for round := 0; time.Since(s.began) < *soak && !t.Failed(); round++ {
		p := up(t, dir, "--node", "none", "--controllers", "none")
		if round == 0 {
			s.prepare(p)
		}
		s.judge(p)
		if !t.Failed() {
			s.round(p, uint64(round), leastWrites+random.IntN(mostWrites-leastWrites))
		}
		p.kill()
		s.rounds++
	}
	if !t.Failed() {
		p := up(t, dir, "--node", "none", "--controllers", "none")
		s.judge(p)
		p.stop()
	}
	if s.acked.Load() == 0 {
		t.Error("no write was acknowledged")
	}
	t.Logf("%d rounds, %d acknowledged writes, %d of unknown outcome, %d watch events, %d lists in pages", s.rounds, s.acked.Load(),
		s.unknown.Load(), s.events, s.listed)
	if t.Failed() {
		t.Logf("run again with -soak.seed %d. The end of the history:\n%s", *seed, strings.Join(s.tail(), "\n"))
	}
}

// soaking is what a soak knows. What is of one round is forgotten when it has been judged.
type soaking struct {
	t       *testing.T
	began   time.Time
	ids     atomic.Int64
	acked   atomic.Int64
	unknown atomic.Int64
	rounds  int
	events  int
	listed  int

	mu      sync.Mutex
	history []action         // of this round
	past    map[int64]action // its acknowledged writes, by resourceVersion
	tried   map[string]bool  // values that a write of it tried to set, and was not refused
	lists   []listing

	begun   map[string]register // what the round began with
	floor   int64               // the resourceVersion that this was at
	watched []seen              // the round's events
	state   map[string]register // what they come to
	from    int64               // where the watch goes on

	owned *owned
}

// forget begins a round.
func (s *soaking) forget() {
	s.history, s.lists, s.watched = nil, nil, nil
	s.past, s.tried = map[int64]action{}, map[string]bool{}
}

func (s *soaking) prepare(p *program) {
	s.t.Helper()
	for _, name := range []string{"soak", "soak-own"} {
		if _, err := p.client().CoreV1().Namespaces().Apply(s.t.Context(), corev1ac.Namespace(name),
			metav1.ApplyOptions{FieldManager: "soak"}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// round lets clients work until enough is acknowledged.
func (s *soaking) round(p *program, round uint64, enough int) {
	ctx, stop := context.WithCancel(s.t.Context())
	defer stop()
	begun := s.acked.Load()
	reached := make(chan struct{})
	var once sync.Once
	count := func() {
		if s.acked.Add(1)-begun >= int64(enough) {
			once.Do(func() { close(reached) })
		}
	}
	var g sync.WaitGroup
	random := func(n int) *rand.Rand { return rand.New(rand.NewPCG(*seed, round<<8|uint64(n))) }
	for i := range soakWriters {
		r := random(i)
		g.Go(func() { s.fight(ctx, p.client(), r, count) })
	}
	g.Go(func() { s.page(ctx, p.client(), random(100)) })
	g.Go(func() { s.watch(ctx, p.client(), random(101)) })
	for i := range 3 {
		r := random(110 + i)
		g.Go(func() { s.owned.serve(ctx, s.t, p.client(), r, i, count) })
	}
	g.Go(func() { s.owned.roll(ctx, s.t, p.client(), random(120), count) })
	g.Go(func() { s.owned.sweep(ctx, s.t, p.client(), random(121), count) })
	g.Go(func() { s.owned.define(ctx, s.t, p, random(122), count) })
	select {
	case <-reached:
	case <-time.After(max(*soak-time.Since(s.began), time.Second)): // the last kill is for the end of the time
	}
	p.kill()
	stop()
	g.Wait()
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/initializers"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/faulty"
)

var (
	historyCount = flag.Int("histories", 3, "number of random histories in TestFollowersInHistories")
	historySeed  = flag.Uint64("histories.seed", 1, "seed of the first history")
	historySteps = flag.Int("histories.steps", 250, "number of steps in each history")
)

// TestFollowersInHistories drives two API servers on one store through random histories: writes whose clients leave while the store syncs
// them, writes and loads that followers fail to apply, commits that the store refuses, watches that break or whose revision is compacted.
// Once the faults end, each follower of both servers answers as that of a server that has just loaded the store.
func TestFollowersInHistories(t *testing.T) {
	for seed := *historySeed; seed < *historySeed+uint64(*historyCount); seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHistory(t, seed)
				for range *historySteps {
					h.step()
				}
				h.compare()
				if t.Failed() {
					t.Logf("go test ./internal/builtin -run TestFollowersInHistories -histories=1 -histories.seed=%d -histories.steps=%d\n%s",
						seed, *historySteps, strings.Join(h.log, "\n"))
				}
			})
		})
	}
}

// faults are those of one server. The zero value has none.
type faults struct {
	mu      sync.Mutex
	applies map[string]int // number of the next calls of a follower's functions that fail, by its name
	partial bool           // those calls do their work before they fail
	commits int            // number of the next commits that fail
	watch   error          // error of the next batch of the feed's watch, which loses the batch
}

var errInjected = errors.New("injected failure")

// plan is the plan of the server's store engine.
func (f *faults) plan(c faulty.Call) (fault faulty.Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case c.Op == faulty.Commit && f.commits > 0:
		f.commits--
		fault.Before = errInjected
	case c.Op == faulty.Next && c.Key == "/registry/":
		fault.After, f.watch = f.watch, nil
	}
	return fault
}

// call calls a function of a follower, or fails.
func (f *faults) call(name string, do func() error) error {
	f.mu.Lock()
	fails, partial := f.applies[name] > 0, f.partial
	if fails {
		f.applies[name]--
	}
	f.mu.Unlock()
	if !fails {
		return do()
	}
	if partial {
		return errors.Join(do(), errInjected)
	}
	return errInjected
}

// decorate lets a follower fail.
func (f *faults) decorate(of feed.Follower) feed.Follower {
	load, apply := of.Load, of.Apply
	of.Load = func(ctx context.Context, s *feed.Snapshot) error {
		return f.call(of.Name, func() error { return load(ctx, s) })
	}
	of.Apply = func(ctx context.Context, c *feed.Change) error {
		return f.call(of.Name, func() error { return apply(ctx, c) })
	}
	return of
}

// end ends all faults.
func (f *faults) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.applies)
	f.commits, f.watch = 0, nil
}

// history is a random history of two servers on a store.
type history struct {
	t        *testing.T
	random   *rand.Rand
	store    *heldStore
	subjects []subject
	servers  [2]*member
	faults   [2]*faults
	log      []string
	written  int // number of writes that succeeded
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{t: t, random: rand.New(rand.NewPCG(seed, 0)), store: newHeldStore(t), subjects: subjects()}
	for i := range h.servers {
		f := &faults{applies: map[string]int{}}
		runs := i == 0 || h.random.IntN(2) == 0
		h.faults[i] = f
		h.servers[i] = h.start(faulty.New(h.store.engine, f.plan), runs, f.decorate)
	}
	for _, name := range []string{"ns", "other"} {
		h.servers[0].does("POST", "/api/v1/namespaces", `{"metadata":{"name":"`+name+`"}}`)
	}
	return h
}

// start makes a server. If it runs, it does until the test ends what it does between requests.
func (h *history) start(engine store.Engine, runs bool, decorate ...func(feed.Follower) feed.Follower) *member {
	kind, err := initializers.Kind()
	if err != nil {
		h.t.Fatal(err)
	}
	m := newMemberWith(h.t, store.New(engine), decorate, func(o *apiserver.Options) {
		o.Log = slog.New(slog.DiscardHandler)
		o.Kinds, o.Admission = append(o.Kinds, kind), append(o.Admission, initializers.New(clock.RealClock{}))
	})
	if !runs {
		return m
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(h.t.Context()))
	ran := make(chan error, 1)
	go func() { ran <- m.server.Run(ctx) }()
	h.t.Cleanup(func() {
		stop()
		if err := <-ran; err != nil {
			h.t.Error(err)
		}
	})
	return m
}

func (h *history) note(format string, args ...any) {
	h.log = append(h.log, fmt.Sprintf(format, args...))
}

// step does one thing.
func (h *history) step() {
	server := h.random.IntN(len(h.servers))
	m, f := h.servers[server], h.faults[server]
	of := h.subjects[h.random.IntN(len(h.subjects))]
	switch n := h.random.IntN(20); {
	case n == 0:
		h.note("server %d: its watch breaks", server)
		f.mu.Lock()
		f.watch = errInjected
		f.mu.Unlock()
	case n == 1:
		h.note("server %d: its watch is compacted", server)
		f.mu.Lock()
		f.watch = store.ErrCompacted
		f.mu.Unlock()
	case n < 5:
		f.mu.Lock()
		f.applies[of.name], f.partial = 1+h.random.IntN(4), h.random.IntN(2) == 0
		h.note("server %d: follower %s fails %d times, partial=%v", server, of.name, f.applies[of.name], f.partial)
		f.mu.Unlock()
	case n == 5:
		f.mu.Lock()
		f.commits = 1 + h.random.IntN(3)
		h.note("server %d: %d commits fail", server, f.commits)
		f.mu.Unlock()
	case n == 6:
		pause := time.Duration(h.random.IntN(5000)) * time.Millisecond
		h.note("%v pass", pause)
		time.Sleep(pause) // of the bubble
	case n == 7:
		h.note("server %d: %s is asked", server, of.name)
		of.look(m)
	default:
		h.write(server, m, of.objects[h.random.IntN(len(of.objects))])
	}
}

// write creates, changes or deletes an object. The client of every other write leaves while the store syncs one of its commits.
func (h *history) write(server int, m *member, o object) {
	held := 0
	if h.random.IntN(2) == 0 {
		held = 1 + h.random.IntN(2)
	}
	do := func(method, path, body string) int {
		var code int
		if held > 0 {
			w, left := h.store.disconnect(m, held, method, path, body)
			code = w.Code
			h.note("server %d: %s %s %s: %d, left=%v", server, method, path, body, code, left)
		} else {
			code = m.say(h.t.Context(), "root", method, path, body).Code
			h.note("server %d: %s %s %s: %d", server, method, path, body, code)
		}
		if code < 300 {
			h.written++
		}
		return code
	}
	path := o.collection + "/" + o.name
	if h.random.IntN(5) < 2 {
		do("DELETE", path+"?gracePeriodSeconds=0", "")
		return
	}
	i := h.random.IntN(len(o.bodies))
	if do("POST", o.collection, o.bodies[i]) == 409 {
		do("PATCH", path, o.bodies[i])
	}
	if o.status != nil {
		do("PATCH", path+"/status", o.status[i])
	}
}

// compare ends all faults, and compares what the servers answer with what a new one does.
func (h *history) compare() {
	for _, f := range h.faults {
		f.end()
	}
	time.Sleep(5 * time.Minute) // of the bubble: what failed is applied again, and controllers of the server have done their work
	synctest.Wait()
	if h.written < *historySteps/4 {
		h.t.Errorf("only %d of %d steps wrote something", h.written, *historySteps)
	}
	var left []string
	for _, of := range h.subjects {
		left = append(left, of.look(h.servers[0]))
	}
	fresh := h.start(h.store.engine, true)
	time.Sleep(5 * time.Minute) // of the bubble
	synctest.Wait()
	for i, of := range h.subjects {
		want := of.look(fresh)
		if left[i] != want {
			h.t.Errorf("server 0: follower %s answers\n%s\nA new server answers\n%s", of.name, left[i], want)
		}
		if of.check != nil {
			of.check(h.servers[0])
		}
		if got := of.look(h.servers[1]); got != want {
			h.t.Errorf("server 1: follower %s answers\n%s\nA new server answers\n%s", of.name, got, want)
		}
	}
	for i, m := range h.servers {
		names := feedNames(m)
		for _, of := range h.subjects {
			n := slices.Index(names, of.name)
			if n < 0 {
				h.t.Fatalf("there is no follower %s among %s", of.name, names)
			}
			names = slices.Delete(names, n, n+1)
		}
		if len(names) > 0 {
			h.t.Errorf("server %d: no objects of followers %s are written: add them to subjects", i, names)
		}
	}
}

// feedNames are the followers that readiness checks name. All of them have to be ready.
func feedNames(m *member) (names []string) {
	w := m.say(m.t.Context(), "root", "GET", "/readyz?verbose", "")
	for line := range strings.Lines(w.Body.String()) {
		rest, found := strings.CutPrefix(line[min(3, len(line)):], "feed/")
		if !found {
			continue
		}
		name, _, _ := strings.Cut(strings.TrimSpace(rest), " ")
		names = append(names, name)
		if !strings.HasPrefix(line, "[+]") {
			m.t.Errorf("readyz: %s", line)
		}
	}
	return names
}

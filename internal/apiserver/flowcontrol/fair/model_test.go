// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/util/shufflesharding"
)

// model is a simple and slow set: one list of requests, from which everything is counted each time.
type model struct {
	config       Config
	limit        int
	all          []*modelled
	nextR        []SeatSeconds
	r            SeatSeconds
	at           time.Time
	robin, dealt int
}

type modelled struct {
	id       int
	work     Work
	state    state
	queue    int
	arrivedR SeatSeconds
	started  time.Time
}

func (m *model) sum(of func(*modelled) int) (n int) {
	for _, r := range m.all {
		n += of(r)
	}
	return n
}

func (m *model) held() int {
	return m.sum(func(r *modelled) int {
		if r.state == running || r.state == lingering {
			return r.work.Seats()
		}
		return 0
	})
}

func (m *model) in(queue int, states ...state) (out []*modelled) {
	for _, r := range m.all {
		if r.queue == queue && slices.Contains(states, r.state) {
			out = append(out, r)
		}
	}
	return out
}

func (r *modelled) total() SeatSeconds {
	return Times(float64(r.work.Initial), guess) + Times(float64(r.work.Final), r.work.Linger)
}

func (m *model) sync(now time.Time) {
	d := now.Sub(m.at)
	m.at = now
	busy := 0
	for q := range m.nextR {
		if len(m.in(q, waiting, running)) > 0 {
			busy++
		}
	}
	wanted := m.sum(func(r *modelled) int {
		if r.state != idle {
			return r.work.Seats()
		}
		return 0
	})
	if busy > 0 {
		m.r += Times(float64(min(wanted, m.limit))/float64(busy), d)
	}
}

func (m *model) start(now time.Time, hash uint64, r *modelled) Decision {
	m.sync(now)
	dealer, _ := shufflesharding.NewDealer(m.config.Queues, m.config.Hand)
	hand := dealer.DealIntoHand(hash, nil)
	best, least := -1, SeatSeconds(0)
	for i := range hand {
		q := hand[(m.dealt%len(hand)+i)%len(hand)]
		work := SeatSeconds(0)
		for _, w := range m.in(q, waiting) {
			work += w.total()
		}
		if best < 0 || work < least {
			best, least = q, work
		}
	}
	m.dealt++
	if m.held() >= m.limit && len(m.in(best, waiting)) >= m.config.Length {
		return Full
	}
	if len(m.in(best, waiting, running)) == 0 {
		m.nextR[best] = m.r
	}
	r.queue, r.state, r.arrivedR = best, waiting, m.r
	m.all = append(m.all, r)
	m.bound(best)
	m.dispatch(now)
	if r.state == running {
		return Run
	}
	return Wait
}

func (m *model) bound(q int) {
	if w := m.in(q, waiting); len(w) > 0 {
		m.nextR[q] = max(m.nextR[q], w[0].arrivedR)
	}
}

func (m *model) dispatch(now time.Time) {
	for m.held() < m.limit {
		best, first := -1, SeatSeconds(0)
		for i := range m.nextR {
			q := (m.robin + 1 + i) % len(m.nextR)
			if w := m.in(q, waiting); len(w) > 0 {
				if end := m.nextR[q] + w[0].total(); best < 0 || end < first {
					best, first = q, end
				}
			}
		}
		if best < 0 {
			return
		}
		r := m.in(best, waiting)[0]
		seats := r.work.Seats()
		if seats > m.limit {
			if m.held() > 0 {
				return
			}
		} else if m.held()+seats > m.limit {
			return
		}
		m.robin = best
		r.state, r.started = running, now
		m.nextR[best] += r.total()
		if r.work.Final > m.limit {
			r.work.Linger = Times(float64(r.work.Final), r.work.Linger).Per(m.limit)
			r.work.Final = m.limit
		}
		m.bound(best)
	}
}

func (m *model) finish(now time.Time, r *modelled) time.Duration {
	m.sync(now)
	r.state = lingering
	m.nextR[r.queue] -= Times(float64(r.work.Initial), guess-now.Sub(r.started))
	m.bound(r.queue)
	if r.work.Linger == 0 {
		r.state = idle
	}
	m.dispatch(now)
	return r.work.Linger
}

func (m *model) release(now time.Time, r *modelled) {
	m.sync(now)
	r.state = idle
	m.dispatch(now)
}

func (m *model) cancel(now time.Time, r *modelled) {
	m.sync(now)
	r.state = idle
	m.bound(r.queue)
	m.dispatch(now)
}

func (m *model) String() (s string) {
	var run, wait, linger []int
	for _, r := range m.all {
		switch r.state {
		case running:
			run = append(run, r.id)
		case waiting:
			wait = append(wait, r.id)
		case lingering:
			linger = append(linger, r.id)
		}
	}
	return fmt.Sprintf("running %v waiting %v lingering %v held %d R %v next %v", run, wait, linger, m.held(), m.r, m.nextR)
}

// TestSetIsTheModel compares the set with the model after each of many random steps.
func TestSetIsTheModel(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { against(t, seed, 400) })
	}
}

func against(t *testing.T, seed uint64, steps int) {
	rnd := rand.New(rand.NewPCG(seed, 1))
	now := time.Unix(0, 0)
	c := Config{Queues: 1 + rnd.IntN(8), Length: 1 + rnd.IntN(4)}
	c.Hand = 1 + rnd.IntN(min(c.Queues, 3))
	limit := 1 + rnd.IntN(6)
	s := New(now)
	s.Configure(now, c)
	s.Limit(now, limit, limit)
	m := &model{config: c, limit: limit, nextR: make([]SeatSeconds, c.Queues), at: now}
	flow := NewFlow("f")
	real := map[int]*Request{}
	states := func() string {
		var run, wait, linger []int
		for _, x := range m.all {
			switch real[x.id].state {
			case running:
				run = append(run, x.id)
			case waiting:
				wait = append(wait, x.id)
			case lingering:
				linger = append(linger, x.id)
			}
		}
		var next []SeatSeconds
		for _, q := range s.queues {
			next = append(next, q.nextR)
		}
		return fmt.Sprintf("running %v waiting %v lingering %v held %d R %v next %v", run, wait, linger, s.held, s.r, next)
	}
	pick := func(st state) *modelled {
		var of []*modelled
		for _, r := range m.all {
			if r.state == st {
				of = append(of, r)
			}
		}
		if len(of) == 0 {
			return nil
		}
		return of[rnd.IntN(len(of))]
	}
	for step := range steps {
		now = now.Add(time.Duration(rnd.IntN(5)) * time.Millisecond)
		what := ""
		switch n := rnd.IntN(20); {
		case n < 9:
			w := Work{Initial: 1 + rnd.IntN(3)}
			if rnd.IntN(10) == 0 {
				w.Initial = limit + 1 // more than there are
			}
			if rnd.IntN(4) == 0 {
				w.Final, w.Linger = 1+rnd.IntN(8), time.Duration(1+rnd.IntN(9))*time.Millisecond
			}
			hash := uint64(rnd.IntN(5)) * 7919
			r, x := &Request{Work: w, Flow: flow}, &modelled{id: step, work: w}
			real[step] = r
			what = fmt.Sprintf("start %d %+v", step, w)
			if got, want := s.Start(now, hash, r), m.start(now, hash, x); got != want {
				t.Fatalf("step %d: %s: decided %d, want %d\n got %s\nwant %s", step, what, got, want, states(), m)
			}
		case n < 14:
			if x := pick(running); x != nil {
				what = fmt.Sprint("finish ", x.id)
				if got, want := s.Finish(now, real[x.id]), m.finish(now, x); got != want {
					t.Fatalf("step %d: %s: lingers %v, want %v", step, what, got, want)
				}
			}
		case n < 17:
			if x := pick(lingering); x != nil {
				what = fmt.Sprint("release ", x.id)
				s.Release(now, real[x.id])
				m.release(now, x)
			}
		case n < 19:
			if x := pick(waiting); x != nil {
				what = fmt.Sprint("cancel ", x.id)
				if !s.Cancel(now, real[x.id]) {
					t.Fatalf("step %d: %s: not cancelled", step, what)
				}
				m.cancel(now, x)
			}
		default:
			if x := pick(running); x != nil && s.Cancel(now, real[x.id]) {
				t.Fatalf("step %d: what runs was cancelled", step)
			}
			s.sync(now)
			m.sync(now)
		}
		if got, want := states(), m.String(); got != want {
			t.Fatalf("step %d: %s:\n got %s\nwant %s", step, what, got, want)
		}
		check(t, s, m)
	}
	// everything ends: no request is left over or starves
	for len(real) > 0 {
		now = now.Add(time.Millisecond)
		if x := pick(running); x != nil {
			s.Finish(now, real[x.id])
			m.finish(now, x)
		} else if x := pick(lingering); x != nil {
			s.Release(now, real[x.id])
			m.release(now, x)
		} else if x := pick(waiting); x != nil {
			t.Fatalf("%d waits for nothing: %s", x.id, m)
		} else {
			break
		}
	}
	if !s.Idle() || s.held != 0 || s.wanted != 0 || s.queueHeld != 0 || s.busy != 0 || flow.Queued != 0 || flow.QueuedSeats != 0 ||
		flow.Running != 0 || flow.RunningSeats != 0 {
		t.Errorf("left over: %+v %+v", s.Counts(), flow)
	}
	if got := int(flow.Dispatched + flow.Full + flow.Late); got != len(real) {
		t.Errorf("%d requests accounted for, want %d", got, len(real))
	}
}

// check reports a set that granted more seats than it has, or that keeps seats free while a request waits for them.
func check(t *testing.T, s *Set, m *model) {
	t.Helper()
	wide := func(r *modelled) int { // a request with more seats than the limit runs alone, though others may linger
		if (r.state == running || r.state == lingering) && r.work.Seats() > s.limit {
			return r.work.Seats()
		}
		return 0
	}
	if n := m.sum(wide); s.held-n > s.limit {
		t.Fatalf("%d seats held of %d", s.held, s.limit)
	}
	if s.waiting > 0 && s.held < s.limit {
		if q := s.next(); s.fits(q.waiting.first.Seats()) {
			t.Fatalf("seats are free and somebody waits: %+v", s.Counts())
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func at(ms int) time.Time { return time.Unix(0, 0).Add(time.Duration(ms) * time.Millisecond) }

func made(c Config, limit int) *Set {
	s := New(at(0))
	s.Configure(at(0), c)
	s.Limit(at(0), limit, limit)
	return s
}

// TestWorkedExample plays the example of the package's comment, in thousandths.
func TestWorkedExample(t *testing.T) {
	s := made(Config{Queues: 2, Hand: 1, Length: 10}, 1)
	var told []string
	of := map[string]*Request{}
	start := func(ms int, name string, hash uint64) {
		r := &Request{Work: Work{Initial: 1}, Flow: NewFlow(name)}
		of[name] = r
		told = append(told, fmt.Sprintf("%d %s %d", ms, name, s.Start(at(ms), hash, r)))
	}
	end := func(ms int, name string) {
		s.Finish(at(ms), of[name])
		for n, r := range of {
			if r.state == running {
				told = append(told, fmt.Sprintf("%d %s runs", ms, n))
			}
		}
	}
	start(0, "a1", 0)
	start(0, "a2", 0)
	start(0, "a3", 0)
	start(1, "b1", 1)
	end(3, "a1")
	end(6, "b1")
	end(9, "a2")
	want := []string{"0 a1 0", "0 a2 1", "0 a3 1", "1 b1 1", "3 b1 runs", "6 a2 runs", "9 a3 runs"}
	if d := cmp.Diff(want, told); d != "" {
		t.Error(d)
	}
}

// serve runs flows that always have a number of waiting requests of a given duration, and returns the seat-seconds of
// each flow.
func serve(s *Set, flows map[uint64]func() (Work, time.Duration), depth int, until time.Duration) map[uint64]float64 {
	type run struct {
		r    *Request
		ends time.Time
		flow uint64
	}
	given, waits := map[uint64]float64{}, map[uint64]int{}
	var live []*run
	now := at(0)
	flow := map[uint64]*Flow{}
	add := func() {
		for f := range uint64(len(flows)) {
			if flow[f] == nil {
				flow[f] = NewFlow(fmt.Sprint(f))
			}
			for waits[f] < depth {
				w, took := flows[f]()
				r := &run{r: &Request{Work: w, Flow: flow[f]}, flow: f}
				r.r.Owner = took
				if d := s.Start(now, f, r.r); d == Full {
					break
				}
				live = append(live, r)
				waits[f]++
			}
		}
	}
	for now.Sub(at(0)) < until {
		add()
		var first *run
		for _, r := range live {
			if r.r.state == running {
				r.ends = r.r.Started.Add(r.r.Owner.(time.Duration))
				if first == nil || r.ends.Before(first.ends) {
					first = r
				}
			}
		}
		now = first.ends
		given[first.flow] += float64(first.r.Seats()) * first.r.Owner.(time.Duration).Seconds()
		waits[first.flow]--
		s.Finish(now, first.r)
		for i, r := range live {
			if r == first {
				live = append(live[:i], live[i+1:]...)
				break
			}
		}
	}
	return given
}

// TestFairness checks that flows that request as much as possible get the same, however wide and long their requests
// are.
func TestFairness(t *testing.T) {
	for name, flows := range map[string]map[uint64]func() (Work, time.Duration){
		"alike": {
			0: func() (Work, time.Duration) { return Work{Initial: 1}, 3 * time.Millisecond },
			1: func() (Work, time.Duration) { return Work{Initial: 1}, 3 * time.Millisecond },
		},
		"long and short": {
			0: func() (Work, time.Duration) { return Work{Initial: 1}, 40 * time.Millisecond },
			1: func() (Work, time.Duration) { return Work{Initial: 1}, time.Millisecond },
		},
		"wide and narrow": {
			0: func() (Work, time.Duration) { return Work{Initial: 8}, 3 * time.Millisecond },
			1: func() (Work, time.Duration) { return Work{Initial: 1}, 3 * time.Millisecond },
		},
		"three": {
			0: func() (Work, time.Duration) { return Work{Initial: 4}, 10 * time.Millisecond },
			1: func() (Work, time.Duration) { return Work{Initial: 1}, 5 * time.Millisecond },
			2: func() (Work, time.Duration) { return Work{Initial: 2}, 2 * time.Millisecond },
		},
	} {
		t.Run(name, func(t *testing.T) {
			const limit = 10
			off := 0.15
			if name == "wide and narrow" {
				off = 0.35 // while eight seats are gathered for the wide request, the narrow flow loses its share of them
			}
			given := serve(made(Config{Queues: len(flows), Hand: 1, Length: 100}, limit), flows, 40, 20*time.Second)
			total := 0.0
			for _, g := range given {
				total += g
			}
			if total < 0.75*limit*20 {
				t.Errorf("only %.0f of %d seat-seconds were given", total, limit*20)
			}
			for f, g := range given {
				if part := g / total * float64(len(flows)); part < 1-off || part > 1+off {
					t.Errorf("flow %d has %.2f of its fair part: %v", f, part, given)
				}
			}
		})
	}
}

// TestQuietFlow checks that a single request of a quiet flow waits no longer than for the next free seat, whatever a
// noisy flow does.
func TestQuietFlow(t *testing.T) {
	s := made(Config{Queues: 64, Hand: 6, Length: 50}, 10)
	noisy, quiet := NewFlow("noisy"), NewFlow("quiet")
	const each = 10 * time.Millisecond
	var live []*Request
	now := at(0)
	worst := time.Duration(0)
	for round := range 2000 {
		for range 64 { // as many as are admitted
			r := &Request{Work: Work{Initial: 1}, Flow: noisy}
			if d := s.Start(now, 12345, r); d == Full {
				break
			}
			live = append(live, r)
		}
		var q *Request
		if round%3 == 0 {
			q = &Request{Work: Work{Initial: 1}, Flow: quiet}
			if d := s.Start(now, 987654321, q); d == Full {
				t.Fatal("the quiet flow was refused")
			}
			live = append(live, q)
		}
		now = now.Add(each / 10)
		for i := 0; i < len(live); i++ { // the seats are staggered: one becomes free each tenth
			if r := live[i]; r.state == running && now.Sub(r.Started) >= each {
				s.Finish(now, r)
				live = append(live[:i], live[i+1:]...)
				i--
			}
		}
		if q != nil && q.state != idle {
			if q.state == waiting {
				worst = max(worst, now.Sub(q.Arrived))
			}
		}
	}
	if noisy.Full == 0 {
		t.Error("the noisy flow filled no queue")
	}
	if quiet.Full > 0 || quiet.Queued > 1 || worst > 2*each {
		t.Errorf("quiet: %d refused, %d wait, %v at worst", quiet.Full, quiet.Queued, worst)
	}
}

func TestRejectAndUnlimited(t *testing.T) {
	flow := NewFlow("f")
	s := made(Config{}, 2)
	a, b, c := &Request{Work: Work{Initial: 1}, Flow: flow}, &Request{Work: Work{Initial: 1}, Flow: flow},
		&Request{Work: Work{Initial: 1}, Flow: flow}
	if got := []Decision{s.Start(at(0), 0, a), s.Start(at(0), 0, b), s.Start(at(0), 0, c)}; !cmp.Equal(got, []Decision{Run, Run, Busy}) {
		t.Errorf("decided %v", got)
	}
	s.Configure(at(1), Config{Queues: 2, Hand: 1, Length: 1}) // from now on they wait
	if d := s.Start(at(1), 0, c); d != Wait {
		t.Errorf("decided %d", d)
	}
	s.Finish(at(2), a)
	select {
	case <-c.Admitted():
	default:
		t.Error("a seat is free and nobody has it")
	}
	u := made(Config{Queues: Unlimited}, 0)
	for range 100 {
		if d := u.Start(at(0), 0, &Request{Work: Work{Initial: 3}, Flow: flow}); d != Run {
			t.Fatalf("decided %d", d)
		}
	}
	if n := u.Counts(); n.Running != 100 || n.Held != 300 {
		t.Errorf("%+v", n)
	}
}

// TestFewerQueues checks that surplus queues are removed when they are empty, and that no waiting request is lost.
func TestFewerQueues(t *testing.T) {
	s := made(Config{Queues: 16, Hand: 1, Length: 10}, 1)
	flow := NewFlow("f")
	var all []*Request
	for i := range uint64(12) {
		r := &Request{Work: Work{Initial: 1}, Flow: flow}
		s.Start(at(0), i, r)
		all = append(all, r)
	}
	s.Configure(at(1), Config{Queues: 2, Hand: 1, Length: 10})
	if n := len(s.queues); n != 12 {
		t.Errorf("%d queues, want those that are not empty", n)
	}
	for done := 0; done < len(all); {
		for _, r := range all {
			if r.state == running {
				s.Finish(at(2+done), r)
				done++
				break
			}
		}
	}
	if len(s.queues) != 2 || !s.Idle() || s.queues[0].index != 0 || s.queues[1].index != 1 {
		t.Errorf("%d queues left, %+v", len(s.queues), s.Counts())
	}
}

// TestEpoch checks that reducing the virtual time changes no decision.
func TestEpoch(t *testing.T) {
	order := func(r SeatSeconds) string {
		s := made(Config{Queues: 3, Hand: 1, Length: 50}, 1)
		s.r = r
		var out []string
		var all []*Request
		for i := range 12 {
			r := &Request{Work: Work{Initial: 1}, Flow: NewFlow(fmt.Sprint(i))}
			s.Start(at(i), uint64(i*i), r)
			all = append(all, r)
		}
		for now := 20; !s.Idle(); now += 7 {
			for _, r := range all {
				if r.state == running {
					out = append(out, r.Flow.Name)
					s.Finish(at(now), r)
					break
				}
			}
		}
		if r > 0 && s.Epochs == 0 {
			t.Error("it did not go back")
		}
		return strings.Join(out, " ")
	}
	if a, b := order(0), order(far-Times(1, 10*time.Millisecond)); a != b {
		t.Errorf("order %s\n then %s", a, b)
	}
}

func TestDemandAndGauges(t *testing.T) {
	s := made(Config{Queues: 1, Hand: 1, Length: 10}, 2)
	a, b := &Request{Work: Work{Initial: 2}, Flow: NewFlow("f")}, &Request{Work: Work{Initial: 2}, Flow: NewFlow("f")}
	s.Start(at(0), 0, a)
	s.Start(at(1000), 0, b)
	s.Finish(at(2000), a)
	s.Finish(at(3000), b)
	d := s.Demanded(at(4000)) // 2, 4, 2 and 0 seats, a second each
	if d.Average != 2 || d.High != 4 || d.Seconds != 4 || d.Deviation < 1.41 || d.Deviation > 1.42 {
		t.Errorf("%+v", d)
	}
	if d := s.Demanded(at(5000)); d.Average != 0 || d.High != 0 || d.Seconds != 1 {
		t.Errorf("afterwards %+v", d)
	}
	s.Held.Tell(at(5000))
	if got := s.Held.Counts[len(s.Held.Counts)-2]; got != int64(3*time.Second) { // all seats: the bucket of 1
		t.Errorf("all seats were held for %v", time.Duration(got))
	}
}

func BenchmarkUncontended(b *testing.B) {
	s := made(Config{Queues: 128, Hand: 6, Length: 50}, 245)
	f := NewFlow("f")
	r := &Request{Work: Work{Initial: 1}, Flow: f}
	now := at(0)
	b.ReportAllocs()
	for i := range b.N {
		now = now.Add(time.Microsecond)
		s.Start(now, uint64(i), r)
		s.Finish(now, r)
	}
}

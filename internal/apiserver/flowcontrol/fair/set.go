// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package fair selects the request that runs next: fair queuing of the requests of one priority level, as in Kubernetes'
// API Priority and Fairness. It is pure: it reads no clock, starts no goroutine, never waits and takes no lock.
//
// A [Set] has a number of seats. A [Request] gets its seats immediately if enough are free. Otherwise it waits in one
// of the set's queues until others release theirs, or is rejected if that queue is full. Each flow has a hand of queues
// (shuffle sharding), and its requests go to the queue of the hand with the least work. So one noisy flow fills few
// queues and does not delay others.
//
// # The next request
//
// A set has a virtual time R: the seat-seconds that each busy queue would have received since the beginning if all had
// received the same. A queue knows the R at which its next request begins (nextR). That request virtually ends when its
// work is done after nextR, and the request that would end first runs next. An example with one seat and requests of 1
// seat-second each: queue A has three requests at R 0, queue B has one at R 0.5.
//
//	R 0    A's first runs: A's nextR is 1, its second would end at 2
//	R 0.5  B's comes: B's nextR is 0.5, it would end at 1.5
//	R 1    the seat is free: B's ends first, so B's runs; then A's second and third
//
// The work of a request is known only after it has run. It is estimated as 3 ms for each of its seats, and corrected at
// the end. Seats that are held for a while after the end, while watchers receive the event, count as work from the
// start.
//
// # Lifetimes
//
// The times that methods receive never decrease. Calls of one set are serialized. A Request belongs to the set from
// Start until it was rejected, [Set.Cancel] returned true, or [Set.Finish] and, if required, [Set.Release] were called.
package fair

import (
	"fmt"
	"math"
	"time"

	"k8s.io/apiserver/pkg/util/shufflesharding"
)

// guess is the estimated duration of a request.
const guess = 3 * time.Millisecond

// Virtual time goes back by half of what can be told when it gets too far.
const (
	back = SeatSeconds(math.MaxInt64 / 2)
	far  = back + back/2
)

// Config configures a set's queues. Queues may be 0: requests are rejected instead of waiting; or [Unlimited].
type Config struct{ Queues, Hand, Length int }

// Unlimited as the number of queues means that every request runs immediately, and is counted.
const Unlimited = -1

// Decision is the state of a request.
type Decision uint8

// The decisions.
const (
	Run  Decision = iota // now
	Wait                 // until Admitted is set
	Full                 // rejected: its queue is full
	Busy                 // rejected: no seat is free, and there are no queues
)

// Set schedules the requests of one priority level.
type Set struct {
	Waiting, Running, Held, Wanted Gauge // relative to their limits: waiting and running requests, held and requested seats
	demand                         Demand

	config Config
	dealer *shufflesharding.Dealer
	limit  int

	queues    []*queue
	queueless list // running requests without a queue
	r         SeatSeconds
	at        time.Time // the time of r
	robin     int       // the queue of the last dispatch
	dealt     int

	waiting, running     int
	held, wanted         int // seats of running and lingering requests, and of waiting ones
	queueHeld, busy      int // the part of held in queues, and the number of queues with requests
	Dispatched, Rejected int
	Cancelled            int
	Epochs               uint64
	last                 Last
}

// Last describes the last dispatch from a queue.
type Last struct {
	Seen                             bool
	R, S, Min, Max, LessMin, LessMax SeatSeconds
}

var (
	waitingBounds = []float64{0, 0.001, 0.003, 0.01, 0.03, 0.1, 0.25, 0.5, 0.75, 1}
	heldBounds    = []float64{0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1}
	wantedBounds  = []float64{0.2, 0.4, 0.6, 0.8, 1, 1.2, 1.4, 1.7, 2, 2.8, 4, 6}
)

// New makes a set without seats.
func New(now time.Time) *Set {
	return &Set{
		at: now, Waiting: NewGauge(now, waitingBounds, 1), Running: NewGauge(now, waitingBounds, 1),
		Held: NewGauge(now, heldBounds, 1), Wanted: NewGauge(now, wantedBounds, 1), demand: Demand{since: now},
	}
}

// Check rejects an invalid configuration.
func (c Config) Check() error {
	if c.Queues <= 0 {
		return nil
	}
	if _, err := shufflesharding.NewDealer(c.Queues, c.Hand); err != nil {
		return fmt.Errorf("deal hands: %w", err)
	}
	return nil
}

// Configure changes the queues of the set. c must pass Check. Surplus queues are removed when they are empty.
func (s *Set) Configure(now time.Time, c Config) {
	s.sync(now)
	if c.Queues > 0 {
		if c.Queues != s.config.Queues || c.Hand != s.config.Hand {
			s.dealer, _ = shufflesharding.NewDealer(c.Queues, c.Hand) // checked before
		}
		for len(s.queues) < c.Queues {
			s.queues = append(s.queues, &queue{index: len(s.queues)})
		}
	} else {
		c.Hand, c.Length = s.config.Hand, s.config.Length
	}
	s.config = c
	for i := len(s.queues) - 1; i >= 0 && len(s.queues) > max(c.Queues, 0); i-- {
		s.drop(s.queues[i])
	}
	room := max(c.Length, 1)
	if c.Queues > 0 {
		room *= c.Queues
	}
	s.Waiting.SetOf(now, float64(room))
}

// Limit sets the number of seats, and the number relative to which their use is reported.
func (s *Set) Limit(now time.Time, seats, of int) {
	s.sync(now)
	s.limit = seats
	for _, g := range []*Gauge{&s.Running, &s.Held, &s.Wanted} {
		g.SetOf(now, float64(of))
	}
	s.dispatch(now)
	s.tell(now)
}

// Start adds a request. hash selects its flow's queues.
func (s *Set) Start(now time.Time, hash uint64, r *Request) Decision {
	s.sync(now)
	r.Arrived, r.arrivedR, r.admitted = now, s.r, nil
	r.last = Times(float64(r.Final), r.Linger)
	r.total = Times(float64(r.Initial), guess) + r.last
	seats := r.Seats()
	if s.config.Queues <= 0 {
		if !s.fits(seats) {
			s.Rejected++
			r.Flow.Busy++
			return Busy
		}
		r.queue = nil
		s.run(now, nil, r)
		s.tell(now)
		return Run
	}
	q := s.deal(hash)
	if s.held >= s.limit && q.waiting.n >= s.config.Length {
		s.Rejected++
		r.Flow.Full++
		return Full
	}
	if !q.busy() {
		q.nextR = s.r
	}
	r.queue = q
	r.Flow.EverQueued = true
	if s.waiting == 0 && s.held < s.limit && s.fits(seats) { // no request waits before it
		r.Flow.Lengths.Observe(1)
		q.nextR = max(q.nextR, s.r)
		s.robin = q.index
		s.note(q, q.nextR, q.nextR, s.less(q), s.less(q))
		s.run(now, q, r)
		s.tell(now)
		return Run
	}
	s.enqueue(q, r)
	r.Flow.Lengths.Observe(float64(q.waiting.n))
	s.dispatch(now)
	s.tell(now)
	if r.state == running {
		return Run
	}
	r.admitted = make(chan struct{}, 1)
	return Wait
}

// Cancel removes a waiting request. It returns false if the request does not wait any more; its owner then runs it.
func (s *Set) Cancel(now time.Time, r *Request) bool {
	s.sync(now)
	if r.state != waiting {
		return false
	}
	s.dequeue(r)
	r.state = idle
	s.Rejected++
	s.Cancelled++
	r.Flow.Late++
	s.bound(r.queue)
	s.drop(r.queue)
	s.dispatch(now) // the requests behind it may need fewer seats
	s.tell(now)
	return true
}

// Finish ends a running request. It frees the seats, unless the request lingers: then its owner calls Release after
// linger.
func (s *Set) Finish(now time.Time, r *Request) (linger time.Duration) {
	s.sync(now)
	s.running--
	r.Flow.Running--
	took := now.Sub(r.Started)
	if q := r.queue; q != nil {
		q.running.remove(r)
		s.calm(q)
		q.nextR -= Times(float64(r.Initial), guess-took)
		s.bound(q)
	} else {
		s.queueless.remove(r)
	}
	r.state = lingering
	if r.Linger > 0 {
		s.dispatch(now)
		s.tell(now)
		return r.Linger
	}
	s.release(now, r)
	return 0
}

// Release frees the seats of a request that lingered.
func (s *Set) Release(now time.Time, r *Request) {
	s.sync(now)
	s.release(now, r)
}

func (s *Set) release(now time.Time, r *Request) {
	seats := r.Seats()
	s.held -= seats
	r.Flow.RunningSeats -= seats
	r.state = idle
	if q := r.queue; q != nil {
		q.seats -= seats
		s.queueHeld -= seats
		s.drop(q)
	}
	s.dispatch(now)
	s.tell(now)
}

// Idle reports whether no request waits or runs.
func (s *Set) Idle() bool { return s.waiting == 0 && s.running == 0 }

// Demanded returns the demand since the last call.
func (s *Set) Demanded(now time.Time) Demanded { return s.demand.reset(now) }

// R returns the current virtual time.
func (s *Set) R() SeatSeconds { return s.r }

// Last returns the last dispatch from a queue.
func (s *Set) Last() Last { return s.last }

// tell updates the gauges.
func (s *Set) tell(now time.Time) {
	s.Waiting.Set(now, float64(s.waiting))
	s.Running.Set(now, float64(s.running))
	s.Held.Set(now, float64(s.held))
	want := float64(s.held + s.wanted)
	s.Wanted.Set(now, want)
	s.demand.set(now, want)
}

// sync advances the virtual time to now.
func (s *Set) sync(now time.Time) {
	d := now.Sub(s.at)
	s.at = now
	if s.busy == 0 || d <= 0 {
		return
	}
	rate := float64(min(s.queueHeld+s.wanted, s.limit)) / float64(s.busy)
	if s.r += Times(rate, d); s.r < far {
		return
	}
	s.r -= back
	s.Epochs++
	for _, q := range s.queues {
		if !q.busy() {
			q.nextR = 0 // outdated; set before its next use
			continue
		}
		q.nextR -= back
		q.waiting.each(func(r *Request) { r.arrivedR -= back })
	}
}

// deal returns the queue of the flow's hand with the least work.
func (s *Set) deal(hash uint64) *queue {
	var back [8]int
	hand := s.dealer.DealIntoHand(hash, back[:])
	offset := s.dealt % len(hand)
	s.dealt++
	var best *queue
	for i := range hand {
		q := s.queues[hand[(offset+i)%len(hand)]]
		if best == nil || q.workSum < best.workSum {
			best = q
		}
	}
	return best
}

func (s *Set) enqueue(q *queue, r *Request) {
	q.waiting.add(r)
	s.rouse(q)
	seats := r.Seats()
	r.state = waiting
	q.initialSum, q.seatsSum, q.workSum = q.initialSum+r.Initial, q.seatsSum+seats, q.workSum+r.total
	s.waiting++
	s.wanted += seats
	r.Flow.Queued++
	r.Flow.QueuedSeats += seats
	s.bound(q)
}

func (s *Set) dequeue(r *Request) {
	q, seats := r.queue, r.Seats()
	q.waiting.remove(r)
	s.calm(q)
	q.initialSum, q.seatsSum, q.workSum = q.initialSum-r.Initial, q.seatsSum-seats, q.workSum-r.total
	s.waiting--
	s.wanted -= seats
	r.Flow.Queued--
	r.Flow.QueuedSeats -= seats
}

// rouse and calm count busy queues: rouse is called before a queue's first request enters, calm after its last one
// left.
func (s *Set) rouse(q *queue) {
	if q.waiting.n+q.running.n == 1 {
		s.busy++
	}
}

func (s *Set) calm(q *queue) {
	if !q.busy() {
		s.busy--
	}
}

// run gives a request its seats.
func (s *Set) run(now time.Time, q *queue, r *Request) {
	seats := r.Seats()
	r.state, r.Started = running, now
	s.running++
	s.held += seats
	s.Dispatched++
	f := r.Flow
	f.EverRan = true
	f.Running++
	f.RunningSeats += seats
	f.Dispatched++
	if q == nil {
		s.queueless.add(r)
		return
	}
	q.running.add(r)
	s.rouse(q)
	q.seats += seats
	s.queueHeld += seats
	if r.Final > s.limit { // more seats than the limit: fewer seats for a longer time
		r.Linger = r.last.Per(max(s.limit, 1))
		r.Final = s.limit
		s.held, q.seats, s.queueHeld, f.RunningSeats = s.held-seats, q.seats-seats, s.queueHeld-seats, f.RunningSeats-seats
		seats = r.Seats()
		s.held, q.seats, s.queueHeld, f.RunningSeats = s.held+seats, q.seats+seats, s.queueHeld+seats, f.RunningSeats+seats
	}
	q.nextR += r.total
}

// dispatch runs waiting requests as long as there are seats.
func (s *Set) dispatch(now time.Time) {
	for s.waiting > 0 && s.held < s.limit {
		q := s.next()
		r := q.waiting.first
		if !s.fits(r.Seats()) {
			r.Flow.Stuck++
			return
		}
		s.dequeue(r)
		s.robin = q.index
		s.run(now, q, r)
		s.bound(q)
		if r.admitted != nil {
			r.admitted <- struct{}{}
		}
	}
}

// next returns the queue whose oldest request would virtually end first. Among equals it chooses round robin.
func (s *Set) next() *queue {
	var best *queue
	var first SeatSeconds
	lo, hi, lessLo, lessHi := SeatSeconds(math.MaxInt64), SeatSeconds(math.MinInt64), SeatSeconds(math.MaxInt64), SeatSeconds(math.MinInt64)
	at := s.robin
	for range s.queues {
		if at++; at >= len(s.queues) {
			at = 0
		}
		q := s.queues[at]
		if q.waiting.first == nil {
			continue
		}
		less := s.less(q)
		lo, hi, lessLo, lessHi = min(lo, q.nextR), max(hi, q.nextR), min(lessLo, less), max(lessHi, less)
		if end := q.nextR + q.waiting.first.total; best == nil || end < first {
			best, first = q, end
		}
	}
	s.note(best, lo, hi, lessLo, lessHi)
	return best
}

func (s *Set) less(q *queue) SeatSeconds { return q.nextR - Times(float64(q.seats), guess) }

func (s *Set) note(q *queue, lo, hi, lessLo, lessHi SeatSeconds) {
	s.last = Last{true, s.r, q.nextR, lo, hi, lessLo, lessHi}
}

// fits reports whether seats are free. One that wants more than there are runs alone.
func (s *Set) fits(seats int) bool {
	switch {
	case s.config.Queues < 0:
		return true
	case seats > s.limit:
		return s.held == 0
	}
	return s.held+seats <= s.limit
}

// bound prevents a queue from saving up unused time: no request virtually begins before it arrived.
func (s *Set) bound(q *queue) {
	if r := q.waiting.first; r != nil && q.nextR < r.arrivedR {
		q.nextR = r.arrivedR
	}
}

// drop removes an empty queue if there are too many queues.
func (s *Set) drop(q *queue) {
	if q.gone || q.busy() || len(s.queues) <= max(s.config.Queues, 0) {
		return
	}
	q.gone = true
	s.queues = append(s.queues[:q.index], s.queues[q.index+1:]...)
	for i := q.index; i < len(s.queues); i++ {
		s.queues[i].index = i
	}
	if s.robin >= q.index {
		s.robin--
	}
}

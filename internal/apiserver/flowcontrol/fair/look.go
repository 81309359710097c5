// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package fair

// Counts of a set.
type Counts struct{ Waiting, Running, Held, Wanted, Limit int }

// Counts returns the numbers of waiting and running requests, and of seats in use, demanded by waiting requests, and
// available.
func (s *Set) Counts() Counts { return Counts{s.waiting, s.running, s.held, s.wanted, s.limit} }

// Queue is the state of one queue for dumps.
type Queue struct {
	Waiting, Running, Seats int
	NextR                   SeatSeconds
	InitialSum, SeatsSum    int
	WorkSum                 SeatSeconds
}

// Queues returns the state of all queues.
func (s *Set) Queues() []Queue {
	out := make([]Queue, len(s.queues))
	for i, q := range s.queues {
		out[i] = Queue{q.waiting.n, q.running.n, q.seats, q.nextR, q.initialSum, q.seatsSum, q.workSum}
	}
	return out
}

// Each calls f for all requests with the index of their queue and their position in it: -1 for running requests, and
// for those without a queue.
func (s *Set) Each(f func(queue, place int, r *Request)) {
	for i, q := range s.queues {
		n := 0
		q.waiting.each(func(r *Request) { f(i, n, r); n++ })
		q.running.each(func(r *Request) { f(i, -1, r) })
	}
	s.queueless.each(func(r *Request) { f(-1, -1, r) })
}

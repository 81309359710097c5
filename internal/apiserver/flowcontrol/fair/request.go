// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package fair

import "time"

// Request is one that asks for seats. Its owner fills in the first fields, and reuses it only when it is over.
type Request struct {
	Work
	Flow          *Flow
	Distinguisher string // tells flows of one schema apart
	Watch         bool   // only its beginning is counted
	Owner         any

	Arrived, Started time.Time // of the current state

	state       state
	queue       *queue
	prev, next  *Request
	total, last SeatSeconds // its work, and that of its lingering
	arrivedR    SeatSeconds
	admitted    chan struct{}
}

type state uint8

const (
	idle state = iota
	waiting
	running
	lingering
)

// Admitted is sent to when a request that waits may run.
func (r *Request) Admitted() <-chan struct{} { return r.admitted }

// Flow counts what the requests of one flow schema do in a set.
type Flow struct {
	Name string

	Queued, QueuedSeats   int
	EverQueued, EverRan   bool
	Running, RunningSeats int
	Dispatched            uint64
	Full, Busy, Late      uint64 // refused: the queue full, no seat free, waited too long
	Stuck                 uint64 // times that the next was too wide for the seats left

	Waited, Refused Histogram // seconds until it ran or was too late, and until it was refused
	Ran, Watched    Histogram // seconds that it ran, and that watches began
	Lengths         Histogram // of the queue, as each saw it that came
	Widths          Histogram // seats asked for
	Watchers        Histogram // of what is to be written
}

var (
	seconds  = []float64{0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30}
	lengths  = []float64{0, 10, 25, 50, 100, 250, 500, 1000}
	widths   = []float64{1, 2, 4, 8, 16, 32, 64, 100}
	watchers = []float64{0, 1, 10, 100, 1000, 10000}
)

// NewFlow makes the counts of a flow schema.
func NewFlow(name string) *Flow {
	h := func(bounds []float64) Histogram { return Histogram{Bounds: bounds} }
	return &Flow{
		Name: name, Waited: h(seconds), Refused: h(seconds), Ran: h(seconds), Watched: h(seconds),
		Lengths: h(lengths), Widths: h(widths), Watchers: h(watchers),
	}
}

// list holds requests in the order in which they came.
type list struct {
	first, last *Request
	n           int
}

func (l *list) add(r *Request) {
	r.prev, r.next = l.last, nil
	if l.last != nil {
		l.last.next = r
	} else {
		l.first = r
	}
	l.last = r
	l.n++
}

func (l *list) remove(r *Request) {
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		l.first = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		l.last = r.prev
	}
	r.prev, r.next = nil, nil
	l.n--
}

func (l *list) each(f func(*Request)) {
	for r := l.first; r != nil; r = r.next {
		f(r)
	}
}

// queue is one of a set's.
type queue struct {
	index   int
	waiting list
	running list
	nextR   SeatSeconds // when, in virtual time, its next request begins
	seats   int         // held by its requests that run or linger
	gone    bool

	initialSum, seatsSum int // of those that wait
	workSum              SeatSeconds
}

func (q *queue) busy() bool { return q.waiting.n > 0 || q.running.n > 0 }

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package fair

import "time"

// Request is one request for seats. Its owner fills in the first fields, and reuses it only after its end.
type Request struct {
	Work
	Flow          *Flow
	Distinguisher string // names the request's flow
	Watch         bool   // only its initialization counts
	Owner         any

	Arrived, Started time.Time // of the current state

	state       state
	queue       *queue
	prev, next  *Request
	total, last SeatSeconds // the work of the request, and of its lingering
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

// Admitted returns the channel that receives when a waiting request may run.
func (r *Request) Admitted() <-chan struct{} { return r.admitted }

// Flow holds the counters of a flow schema's requests in a set.
type Flow struct {
	Name string

	Queued, QueuedSeats   int
	EverQueued, EverRan   bool
	Running, RunningSeats int
	Dispatched            uint64
	Full, Busy, Late      uint64 // rejected: the queue was full, no seat was free, it waited too long
	Stuck                 uint64 // how often the next request needed more seats than were left

	Waited, Refused Histogram // seconds until it ran or timed out, and until it was rejected
	Ran, Watched    Histogram // seconds that requests ran, and that watches initialized
	Lengths         Histogram // of the queue, as seen by each arriving request
	Widths          Histogram // requested seats
	Watchers        Histogram // of the objects to be written
}

var (
	seconds  = []float64{0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30}
	lengths  = []float64{0, 10, 25, 50, 100, 250, 500, 1000}
	widths   = []float64{1, 2, 4, 8, 16, 32, 64, 100}
	watchers = []float64{0, 1, 10, 100, 1000, 10000}
)

// NewFlow makes the counters of a flow schema.
func NewFlow(name string) *Flow {
	h := func(bounds []float64) Histogram { return Histogram{Bounds: bounds} }
	return &Flow{
		Name: name, Waited: h(seconds), Refused: h(seconds), Ran: h(seconds), Watched: h(seconds),
		Lengths: h(lengths), Widths: h(widths), Watchers: h(watchers),
	}
}

// list holds requests in order of arrival.
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

// queue is one queue of a set.
type queue struct {
	index   int
	waiting list
	running list
	nextR   SeatSeconds // the virtual time at which its next request begins
	seats   int         // held by its running and lingering requests
	gone    bool

	initialSum, seatsSum int // of the waiting requests
	workSum              SeatSeconds
}

func (q *queue) busy() bool { return q.waiting.n > 0 || q.running.n > 0 }

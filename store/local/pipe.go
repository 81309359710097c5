// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"time"

	"github.com/mortise-dev/mortise/store"
)

// pipe is a [replayer] that passes the replay to another one in a goroutine of its own: one core reads and decodes while the other builds
// the index.
type pipe struct {
	filling *stretch
	full    chan *stretch
	free    chan *stretch
	ended   chan struct{}
}

// stretch is a piece of a pipe's replay, in order.
type stretch struct {
	steps  []step
	events []store.Event // of all transactions, one after the other
}

// step is one call: a transaction unless another field is set.
type step struct {
	revision int64
	at       time.Time
	events   int
	record   *store.Record // load
	kind     byte
}

const (
	stepTransaction = iota
	stepBegin
	stepLoad
	stepCompact

	stretchSteps = 512
	stretches    = 4
)

// newPipe returns a pipe to a replayer. The caller closes it and may then use the replayer again.
func newPipe(to replayer) *pipe {
	p := &pipe{
		filling: &stretch{}, full: make(chan *stretch, stretches), free: make(chan *stretch, stretches),
		ended: make(chan struct{}),
	}
	for range stretches {
		p.free <- &stretch{}
	}
	go func() {
		defer close(p.ended)
		for s := range p.full {
			s.pass(to)
			clear(s.steps)
			clear(s.events)
			s.steps, s.events = s.steps[:0], s.events[:0]
			p.free <- s
		}
	}()
	return p
}

// pass calls a replayer.
func (s *stretch) pass(to replayer) {
	events := s.events
	for _, step := range s.steps {
		switch step.kind {
		case stepBegin:
			to.begin(step.revision)
		case stepLoad:
			to.load(step.record)
		case stepCompact:
			to.compact(step.revision)
		default:
			to.transaction(step.revision, step.at, events[:step.events])
			events = events[step.events:]
		}
	}
}

func (p *pipe) add(s step) {
	p.filling.steps = append(p.filling.steps, s)
	if len(p.filling.steps) >= stretchSteps {
		p.flush()
	}
}

func (p *pipe) flush() {
	p.full <- p.filling
	p.filling = <-p.free
}

func (p *pipe) begin(revision int64) { p.add(step{kind: stepBegin, revision: revision}) }

func (p *pipe) load(r *store.Record) { p.add(step{kind: stepLoad, record: r}) }

func (p *pipe) compact(revision int64) { p.add(step{kind: stepCompact, revision: revision}) }

func (p *pipe) transaction(revision int64, at time.Time, events []store.Event) {
	p.filling.events = append(p.filling.events, events...)
	p.add(step{revision: revision, at: at, events: len(events)})
}

// close returns when the pipe has passed everything on.
func (p *pipe) close() {
	p.flush()
	close(p.full)
	<-p.ended
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package lifecycle starts the parts of a process in the order of one table, and stops them in the reverse order.
//
// A table is a slice of [Step] values. [Start] runs its steps one after the other on a value of the caller's, which holds what the
// steps have made; a step takes what earlier ones put there. When a step fails, or the context of the start ends, the steps that
// were started are stopped again, the last one first. Otherwise the [Process] that Start returns runs until [Process.Stop], which
// does the same.
//
// Parts with goroutines of their own belong to a [Group]. The step that makes a group stops it; later steps may add to it.
// A part that ends without being stopped ends the process: [Process.Wait] returns the reason.
package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Step is one line of a table.
type Step[T any] struct {
	Name string
	// Start does the step. When it returns an error, it has left nothing behind. Nil: there is nothing to start.
	Start func(ctx context.Context, t T) error
	// Stop undoes the step. Nil: there is nothing to undo.
	Stop func(t T) error
}

// Announced returns the steps, each of which calls announce with its name before it starts.
func Announced[T any](steps []Step[T], announce func(name string)) []Step[T] {
	out := make([]Step[T], len(steps))
	for i, step := range steps {
		start := step.Start
		step.Start = func(ctx context.Context, t T) error {
			announce(step.Name)
			if start == nil {
				return nil
			}
			return start(ctx, t)
		}
		out[i] = step
	}
	return out
}

// Process is the state of the started steps of a table.
type Process struct {
	stops []func() error // of the steps that were started, in their order
	stop  sync.Once
	err   error // of Stop

	mu        sync.Mutex
	cause     error         // why a part ended by itself
	ending    chan struct{} // closed when a part ended by itself, or Stop was called
	dependent []*Group      // stopped as soon as a part ends by itself
}

// Start runs the steps on t, which the function make returns for the process that is to be. Ending ctx abandons the start;
// afterwards it has no effect.
func Start[T any](ctx context.Context, steps []Step[T], make func(*Process) T) (*Process, error) {
	p := newProcess()
	t := make(p)
	for _, step := range steps {
		err := ctx.Err()
		if err == nil && step.Start != nil {
			err = step.Start(ctx, t)
		}
		if err != nil {
			return nil, errors.Join(err, p.Stop())
		}
		if step.Stop != nil {
			p.stops = append(p.stops, func() error { return step.Stop(t) })
		}
	}
	return p, nil
}

func newProcess() *Process { return &Process{ending: make(chan struct{})} }

// Stop stops the steps, the last one first, and returns when all have stopped. More calls return the same.
func (p *Process) Stop() error {
	p.stop.Do(func() {
		p.end(nil)
		var errs []error
		for i := len(p.stops) - 1; i >= 0; i-- {
			errs = append(errs, p.stops[i]())
		}
		p.err = errors.Join(errs...)
	})
	return p.err
}

// Wait blocks until the process ends: it returns nil after Stop, and the reason when a part ended by itself.
func (p *Process) Wait() error {
	<-p.ending
	p.mu.Lock()
	cause := p.cause
	p.mu.Unlock()
	if cause != nil {
		return cause
	}
	return p.Stop()
}

// end records that the process ends, and why if it was not stopped.
func (p *Process) end(cause error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.ending:
		return
	default:
	}
	p.cause = cause
	close(p.ending)
	if cause != nil {
		for _, g := range p.dependent {
			g.cancel()
		}
	}
}

// Group is goroutines that are stopped together.
type Group struct {
	process *Process
	running sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	cancels []context.CancelFunc
}

// Group returns an empty group. Its goroutines run until it is stopped.
func (p *Process) Group() *Group { return &Group{process: p} }

// Dependents returns an empty group whose goroutines also end as soon as a part of the process ends by itself.
func (p *Process) Dependents() *Group {
	g := p.Group()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dependent = append(p.dependent, g)
	return g
}

// Go calls f in a goroutine. Its context has the values of ctx and ends when the group is stopped, whatever becomes of ctx.
func (g *Group) Go(ctx context.Context, f func(ctx context.Context)) {
	ctx = g.Context(ctx)
	g.running.Go(func() { f(ctx) })
}

// Context returns a context with the values of ctx that ends when the group is stopped.
func (g *Group) Context(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cancels = append(g.cancels, cancel)
	if g.stopped {
		cancel()
	}
	return ctx
}

// Run runs a part in a goroutine. If it returns before the group is stopped, the process ends.
func (g *Group) Run(ctx context.Context, part string, run func(ctx context.Context) error) {
	g.Go(ctx, func(ctx context.Context) {
		err := run(ctx)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			err = errors.New("ended")
		}
		g.process.end(fmt.Errorf("run %s: %w", part, err))
	})
}

// Stop ends the group's contexts and waits for its goroutines.
func (g *Group) Stop() {
	g.cancel()
	g.running.Wait()
}

func (g *Group) cancel() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	for _, cancel := range g.cancels {
		cancel()
	}
}

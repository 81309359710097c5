// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"sync"
	"time"
)

// workers run short tasks beside one another, as the go statement does, on goroutines that are used again: a task that goes deep, as a
// request to the API server of this process does, grows its goroutine's stack four times over, which costs more than handing
// the task over. A worker with nothing to do for a while ends, and all end with the context.
type workers struct {
	tasks   chan func()
	running sync.WaitGroup
}

// restless is how long a worker waits for its next task.
const restless = time.Second

func newWorkers() *workers { return &workers{tasks: make(chan func())} }

// Go runs a task, on a worker that waits for one or on a new one.
func (w *workers) Go(ctx context.Context, task func()) {
	select {
	case w.tasks <- task:
	default:
		w.running.Go(func() { w.work(ctx, task) })
	}
}

// Wait returns when no task is under way and all workers have ended, which they do once the context is done.
func (w *workers) Wait() { w.running.Wait() }

func (w *workers) work(ctx context.Context, task func()) {
	idle := time.NewTimer(restless)
	defer idle.Stop()
	for {
		task()
		idle.Reset(restless)
		select {
		case task = <-w.tasks:
		case <-idle.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

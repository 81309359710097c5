// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"sync"
	"time"
)

// workers run short tasks concurrently, as the go statement does, but reuse goroutines. A task with a deep call stack, such as a request to
// the API server in this process, grows its goroutine's stack four times over, which costs more than passing the task to a worker. A worker
// that is idle for a while ends, and all end with the context.
type workers struct {
	tasks   chan func()
	running sync.WaitGroup
}

// restless is how long an idle worker waits for its next task.
const restless = time.Second

func newWorkers() *workers { return &workers{tasks: make(chan func())} }

// Go runs a task on an idle worker or on a new one.
func (w *workers) Go(ctx context.Context, task func()) {
	select {
	case w.tasks <- task:
	default:
		w.running.Go(func() { w.work(ctx, task) })
	}
}

// Wait returns when all tasks are done and all workers have ended, which they do once the context is done.
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

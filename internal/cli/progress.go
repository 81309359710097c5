// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// slowStep is how long a step of the start takes before it is shown.
const slowStep = time.Second

// progress shows the steps of a start and of an end that take longer than a second, and tells systemd of each.
type progress struct {
	out io.Writer

	mu    sync.Mutex
	phase string // that the steps belong to, in systemd's status
	step  string
	since time.Time
	shown bool
	timer *time.Timer
}

func newProgress(out io.Writer) *progress { return &progress{out: out, phase: "Starting"} }

// stop begins the last step: the server or the node ends.
func (p *progress) stop() {
	p.mu.Lock()
	p.phase = "Stopping"
	p.mu.Unlock()
	p.begin("finish requests and write state to disk; pods keep running")
}

// begin begins a step, and ends the one before it.
func (p *progress) begin(step string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endStep()
	p.step, p.since, p.shown = step, time.Now(), false
	p.timer = time.AfterFunc(slowStep, func() { p.show(step) })
}

// show tells people of a step, unless it has ended.
func (p *progress) show(step string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.step != step {
		return
	}
	p.shown = true
	fmt.Fprintf(p.out, "mortise: %s ...\n", step)
	notify(nil, "STATUS="+p.phase+": "+step)
}

// end ends the last step.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.endStep()
}

// endStep ends the step, with the lock held.
func (p *progress) endStep() {
	if p.timer != nil {
		p.timer.Stop()
	}
	if p.shown {
		fmt.Fprintf(p.out, "mortise: %s: ended after %.1f s\n", p.step, time.Since(p.since).Seconds())
	}
	p.step, p.shown = "", false
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package program runs the programs that the node needs: mount, modprobe, iptables-restore, CNI plug-ins and the like.
//
// A program gets a clean environment, a deadline, and a limit for its output. A program that hangs is killed. Run does not wait for child
// processes that keep the output open.
package program

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"
)

// The defaults of a [Command].
const (
	usualTime   = time.Minute
	usualOutput = 1 << 20
	waitDelay   = time.Second // until the output is closed after the program has ended
)

// Command is a program with its arguments.
type Command struct {
	Name  string // a path, or a name to look up in PATH
	Args  []string
	Input string
	// Env is the environment; nil: [Environment].
	Env []string
	// Time is the time limit; 0: a minute.
	Time time.Duration
	// Output is the maximum size of the standard output in bytes; 0: 1 MiB. Of the standard error, 1 MiB is kept.
	Output int
}

// Environment returns the environment of programs: PATH from the agent's, and an English locale.
func Environment() []string { return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"} }

// ErrOutput is the error of a program that exceeds the limit of its output.
var ErrOutput = errors.New("it writes too much")

// Failure is the error of a program that was started and failed.
type Failure struct {
	Err    error  // an [*exec.ExitError], the context's error, or [ErrOutput]
	Output []byte // the beginning of its standard output
	Errors []byte // the beginning of its standard error
}

// Said returns the output.
func (f *Failure) Said() string { return string(f.Output) + string(f.Errors) }

// Error returns why the program failed, with the beginning of its output.
func (f *Failure) Error() string {
	if said := strings.Join(strings.Fields(f.Said()), " "); said != "" {
		return fmt.Sprintf("%v: %.300s", f.Err, said)
	}
	return f.Err.Error()
}

// Unwrap returns why the program failed.
func (f *Failure) Unwrap() error { return f.Err }

// Run runs the program to its end and returns its standard output.
func (c Command) Run(ctx context.Context) ([]byte, error) {
	limit, most := c.Time, c.Output
	if limit == 0 {
		limit = usualTime
	}
	if most == 0 {
		most = usualOutput
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	x := exec.CommandContext(ctx, c.Name, c.Args...)
	if x.Env = c.Env; c.Env == nil {
		x.Env = Environment()
	}
	x.Stdin = strings.NewReader(c.Input)
	x.WaitDelay = waitDelay
	out, errs := &bounded{left: most, full: cancel}, &bounded{left: usualOutput, full: func() {}}
	x.Stdout, x.Stderr = out, errs
	err := x.Run()
	switch {
	case errors.Is(err, exec.ErrWaitDelay): // it succeeded, and a child process keeps the output open
		err = nil
	case ctx.Err() != nil && err != nil:
		err = ctx.Err()
	}
	if out.exceeded {
		err = fmt.Errorf("%w: more than %d bytes", ErrOutput, most)
	}
	if err != nil {
		return nil, &Failure{Err: err, Output: out.kept, Errors: errs.kept}
	}
	return out.kept, nil
}

// bounded keeps the beginning of its input, and calls full when there is more. It accepts the rest, so that the writer does not block.
type bounded struct {
	kept     []byte
	left     int
	exceeded bool
	full     func()
}

// Write implements [io.Writer].
func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.left)
	b.left -= n
	b.kept = append(b.kept, p[:n]...)
	if n < len(p) && !b.exceeded {
		b.exceeded = true
		b.full()
	}
	return len(p), nil
}

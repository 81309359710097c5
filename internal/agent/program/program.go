// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package program runs the programs that the node needs: mount, modprobe, iptables-restore, CNI plug-ins and the like.
//
// A program gets a clean environment, a deadline, and a limit for its output. A program that hangs is killed, and processes
// that it leaves behind with its output open are not waited for.
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

// What a program has where its [Command] does not say otherwise.
const (
	usualTime   = time.Minute
	usualOutput = 1 << 20
	waitDelay   = time.Second // for the program's output to be closed, after it has ended
)

// Command is a program with its arguments.
type Command struct {
	Name  string // a path, or a name that is looked for in PATH
	Args  []string
	Input string
	// Env is the environment; nil: [Environment].
	Env []string
	// Time is how long it may run; 0: a minute.
	Time time.Duration
	// Output is how many bytes it may write to its standard output; 0: 1 MiB. Of its standard error 1 MiB is kept.
	Output int
}

// Environment is what programs have of the agent's environment: where programs are. They speak English.
func Environment() []string { return []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"} }

// ErrOutput is the error of a program that writes more than it may.
var ErrOutput = errors.New("it writes too much")

// Failure is the error of a program that was started and failed.
type Failure struct {
	Err    error  // an [*exec.ExitError], the context's error, or [ErrOutput]
	Output []byte // the beginning of its standard output
	Errors []byte // the beginning of its standard error
}

// Said is what it wrote.
func (f *Failure) Said() string { return string(f.Output) + string(f.Errors) }

// Error says why the program failed, with the beginning of what it wrote.
func (f *Failure) Error() string {
	if said := strings.Join(strings.Fields(f.Said()), " "); said != "" {
		return fmt.Sprintf("%v: %.300s", f.Err, said)
	}
	return f.Err.Error()
}

// Unwrap returns why the program failed.
func (f *Failure) Unwrap() error { return f.Err }

// Run runs the program to its end and returns what it wrote to its standard output.
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
	case errors.Is(err, exec.ErrWaitDelay): // it succeeded, and something that it started has its output
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

// bounded keeps the beginning of what is written, and calls full when there is more. The rest is taken too, so that its writer does not
// block.
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

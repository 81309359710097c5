// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A virtual machine's processors pause now and then, for milliseconds, when its host runs something else. On a busy host
// this hits a hundredth of all requests, and then it alone determines their 99th percentile. So a separate process, with a
// realtime thread on each processor, measures how punctually it is woken, and the report separates the time that a request
// lost to paused processors from the time that the server took.

// stallsChild is the argument that makes the program look after the processors until its standard input ends.
const stallsChild = "stalls"

const (
	lookEvery = time.Millisecond
	punctual  = 300 * time.Microsecond // later than that, the processor stood still
)

// span is a time on the clock that all processes share, in nanoseconds (CLOCK_MONOTONIC).
type span struct{ from, to int64 }

// monotonic is now on that clock.
func monotonic() (int64, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return 0, fmt.Errorf("read clock: %w", err)
	}
	return now.Nano(), nil
}

// lookOut starts that process. What it returns ends it and tells when processors stood still, in order.
func lookOut(ctx context.Context) (seen func() ([]span, error), err error) {
	c, err := startChild(ctx, stallsChild)
	if err != nil {
		return nil, err
	}
	return func() ([]span, error) {
		err := c.in.Close() // after which it prints
		all, e := c.spans()
		if err := errors.Join(err, e, c.Wait()); err != nil {
			return nil, fmt.Errorf("look after processors: %w", err)
		}
		slices.SortFunc(all, func(a, b span) int { return int(a.from - b.from) })
		return all, nil
	}, nil
}

// lookAfterProcessors is that process.
func lookAfterProcessors(in io.Reader, out io.Writer) error {
	runtime.GOMAXPROCS(runtime.NumCPU() + 2) // no thread is to wait for another of this process
	var may unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return fmt.Errorf("find processors: %w", err)
	}
	done := make(chan struct{})
	var mu sync.Mutex
	var all []span
	var errs []error
	var threads sync.WaitGroup
	for cpu, left := 0, may.Count(); left > 0; cpu++ {
		if !may.IsSet(cpu) {
			continue
		}
		left--
		threads.Go(func() {
			stood, err := lookAfter(cpu, done)
			mu.Lock()
			defer mu.Unlock()
			all, errs = append(all, stood...), append(errs, err)
		})
	}
	_, err := io.Copy(io.Discard, in)
	close(done)
	threads.Wait()
	w := bufio.NewWriter(out)
	for _, s := range all {
		fmt.Fprintln(w, s.from, s.to)
	}
	return errors.Join(errors.Join(errs...), err, w.Flush())
}

// lookAfter notes when a processor wakes its thread late, until done.
func lookAfter(cpu int, done <-chan struct{}) (stood []span, err error) {
	runtime.LockOSThread() // and never back: it dies with this goroutine
	var only unix.CPUSet
	only.Set(cpu)
	if err := unix.SchedSetaffinity(0, &only); err != nil {
		return nil, fmt.Errorf("stay on processor %d: %w", cpu, err)
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 20}, 0); errors.Is(err,
		unix.EPERM) {
		return nil, nil // as ahead says: then all that was met counts
	} else if err != nil {
		return nil, fmt.Errorf("go ahead of all others: %w", err)
	}
	next, err := monotonic()
	if err != nil {
		return nil, err
	}
	for {
		select {
		case <-done:
			return stood, nil
		default:
		}
		next += lookEvery.Nanoseconds()
		at := unix.NsecToTimespec(next)
		if err := unix.ClockNanosleep(unix.CLOCK_MONOTONIC, unix.TIMER_ABSTIME, &at, nil); err != nil && !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("sleep: %w", err)
		}
		now, err := monotonic()
		if err != nil {
			return nil, err
		}
		if now-next > punctual.Nanoseconds() {
			stood = append(stood, span{next, now})
			next = now
		}
	}
}

// meets reports whether any of spans, which are in order, has a part of s.
func (s span) meets(spans []span) bool {
	for _, o := range spans {
		if o.from >= s.to {
			return false
		}
		if o.to > s.from {
			return true
		}
	}
	return false
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package backoff

import (
	"sync"
	"time"
)

// The minimum and maximum time between two logged failures of a series.
const (
	firstQuiet = time.Minute
	mostQuiet  = time.Hour
)

// Failures is a series of failures of one operation that is retried. It counts them, determines the delay before the next attempt, and logs
// the first and then fewer and fewer of them. The zero value has no failures. It is safe for concurrent use.
type Failures struct {
	mu     sync.Mutex
	count  int
	wait   time.Duration
	until  time.Time     // when to retry
	logged time.Time     // the last logged failure
	quiet  time.Duration // the time without a log line after that
}

// Log counts a failure at the given time, and logs some: the first, then one after a minute, after two, four, and so on up to an hour. From
// the second line on, the line has the number of failures so far. The function is a method of the logger, such as Warn.
func (f *Failures) Log(now time.Time, log func(message string, args ...any), message string, args ...any) {
	f.mu.Lock()
	f.count++
	count, due := f.count, f.count == 1 || now.Sub(f.logged) >= f.quiet
	if due {
		f.logged, f.quiet = now, min(max(2*f.quiet, firstQuiet), mostQuiet)
	}
	f.mu.Unlock()
	switch {
	case !due:
	case count == 1:
		log(message, args...)
	default:
		log(message, append(args[:len(args):len(args)], "failures", count)...)
	}
}

// Wait returns the delay after a failure at the given time: first, then doubled each time, at most most.
func (f *Failures) Wait(now time.Time, first, most time.Duration) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wait = min(max(2*f.wait, first), most)
	f.until = now.Add(f.wait)
	return f.wait
}

// Left returns the rest of the delay; zero: the operation may run.
func (f *Failures) Left(now time.Time) time.Duration {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.until.IsZero() {
		return 0
	}
	return max(f.until.Sub(now), 0)
}

// Release ends the current delay, because something has changed. The series continues: the next delay is longer.
func (f *Failures) Release() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.until = time.Time{}
}

// Clear ends the series: the operation has succeeded.
func (f *Failures) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.count, f.wait, f.until, f.logged, f.quiet = 0, 0, time.Time{}, time.Time{}, 0
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extension

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net/http/httptrace"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// account is what is known of one extension, with its breaker's state.
type account struct {
	mu     sync.Mutex
	entry  Entry
	open   bool
	failed bool // the newest call
	inARow int
	until  time.Time
	trying bool
	sketch sketch
	counts [len(bounds) + 1]int64
}

// begin asks the breaker.
func (a *account) begin(p Policy, c clock.PassiveClock) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open && p.Failures > 0 {
		if a.trying || c.Now().Before(a.until) {
			a.entry.Refused++
			return fmt.Errorf("%w: %s", ErrOpen, a.entry.LastError)
		}
		a.trying = true
	}
	return nil
}

// end books the call.
func (a *account) end(p Policy, c clock.PassiveClock, took time.Duration, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := &a.entry
	e.Calls++
	e.Total += took
	e.Longest = max(e.Longest, took)
	a.sketch.add(took)
	a.counts[bucket(took)]++
	a.trying, a.failed = false, err != nil
	if err == nil {
		a.inARow, a.open = 0, false
		return
	}
	e.Failures++
	a.inARow++
	e.LastError, e.LastFailure = clip(err.Error()), c.Now()
	if p.Failures > 0 && a.inARow >= p.Failures {
		a.open, a.until = true, c.Now().Add(p.Pause)
	}
}

// watched is a context under which an HTTP client tells the account of the certificates that it is shown.
func (a *account) watched(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{TLSHandshakeDone: func(s tls.ConnectionState, err error) {
		if err != nil || len(s.PeerCertificates) == 0 {
			return
		}
		a.mu.Lock()
		defer a.mu.Unlock()
		a.entry.Certificate = s.PeerCertificates[0].NotAfter
	}})
}

// maxError bounds what is kept of an error's text: a webhook says what it likes.
const maxError = 1024

func clip(s string) string {
	if len(s) > maxError {
		return s[:maxError] + "…"
	}
	return s
}

func (a *account) snapshot() Entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	e := a.entry
	switch {
	case a.open:
		e.State = Open
	case a.failed:
		e.State = Failing
	case e.Calls > 0:
		e.State = OK
	default:
		e.State = Unused
	}
	e.P50, e.P99 = min(a.sketch.quantile(0.5), e.Longest), min(a.sketch.quantile(0.99), e.Longest)
	if e.Calls > 0 {
		sum := int64(0)
		e.Latency = make([]int64, len(bounds))
		for i := range bounds {
			sum += a.counts[i]
			e.Latency[i] = sum
		}
	}
	return e
}

// bounds are the upper bounds of the latencies that are counted, in seconds: those of upstream's webhook metrics.
var bounds = [...]float64{0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 5, 10, 25}

// Bounds are the bounds of [Entry.Latency], in seconds.
func Bounds() []float64 { return bounds[:] }

func bucket(d time.Duration) int {
	s := d.Seconds()
	for i, b := range bounds {
		if s <= b {
			return i
		}
	}
	return len(bounds)
}

// sketch tells quantiles of the newest calls within a fifth, in bounded room. Bucket i counts calls that took up to
// 2^(i/4) µs; when there are many, all counts are halved, so that what is old weighs less and less.
//
// Worked example: of 100 calls 98 took 900 µs (bucket 40, up to 1024 µs) and two 50 ms (bucket 63, up to 55 ms): the median
// is told as 1.024 ms, the 99th percentile as 55 ms.
type sketch struct {
	counts [4 * 30]uint32 // to 2^30 µs, 18 minutes; what is longer counts as that
	total  uint32
}

// many is when counts are halved.
const many = 4096

func (s *sketch) add(d time.Duration) {
	i := 0
	if us := d.Microseconds(); us > 1 {
		i = min(int(math.Ceil(4*math.Log2(float64(us)))), len(s.counts)-1)
	}
	s.counts[i]++
	if s.total++; s.total < many {
		return
	}
	s.total = 0
	for i := range s.counts {
		s.counts[i] /= 2
		s.total += s.counts[i]
	}
}

func (s *sketch) quantile(q float64) time.Duration {
	if s.total == 0 {
		return 0
	}
	rank, sum := uint32(math.Ceil(q*float64(s.total))), uint32(0)
	for i, n := range s.counts {
		if sum += n; sum >= rank {
			return time.Duration(math.Exp2(float64(i)/4) * float64(time.Microsecond))
		}
	}
	return time.Duration(math.Exp2(float64(len(s.counts)-1)/4) * float64(time.Microsecond))
}

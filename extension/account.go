// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extension

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net/http/httptrace"
	"strings"
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

// begin asks the breaker. trial is that this is the one call that is let through to try.
func (a *account) begin(p Policy, c clock.PassiveClock) (trial bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case !a.open:
		return false, nil
	case p.Failures == 0: // there is no breaker any more
		a.inARow, a.open = 0, false
		return false, nil
	case a.trying || c.Now().Before(a.until):
		a.entry.Refused++
		return false, fmt.Errorf("%w: %s", ErrOpen, a.entry.LastError)
	}
	a.trying = true
	return true, nil
}

// end books the call, and tells who wants to know when the breaker opened or closed.
func (a *account) end(p Policy, c clock.PassiveClock, took time.Duration, trial bool, err error) {
	before, after := a.book(p, c, took, trial, err)
	if before != after && p.Turned != nil {
		p.Turned(after)
	}
}

func (a *account) book(p Policy, c clock.PassiveClock, took time.Duration, trial bool, err error) (before, after bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	before = a.open
	e := &a.entry
	e.Calls++
	e.Total += took
	e.Longest = max(e.Longest, took)
	a.sketch.add(took)
	a.counts[bucket(took)]++
	if trial {
		a.trying = false
	}
	a.failed = err != nil
	if err == nil {
		a.inARow, a.open = 0, false
		return before, false
	}
	e.Failures++
	e.LastError, e.LastFailure = clip(err.Error()), c.Now()
	if p.Excused != nil && p.Excused(err) {
		return before, a.open
	}
	a.inARow++
	if p.Failures > 0 && a.inARow >= p.Failures && (trial || !a.open) { // calls that began before it opened prolong nothing
		a.open, a.until = true, c.Now().Add(p.Pause)
	}
	return before, a.open
}

// forgive closes the breaker.
func (a *account) forgive() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.inARow, a.open, a.trying = 0, false, false
}

// watched returns a context for requests of an HTTP client. The account records the certificate that the server shows on a new connection,
// and the certificate of a connection that the client uses again.
func (a *account) watched(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		TLSHandshakeDone: func(s tls.ConnectionState, err error) {
			if err == nil {
				a.shown(&s)
			}
		},
		GotConn: func(i httptrace.GotConnInfo) {
			if c, ok := i.Conn.(interface{ ConnectionState() tls.ConnectionState }); ok && i.Reused {
				s := c.ConnectionState()
				a.shown(&s)
			}
		},
	})
}

// shown takes in the certificate of a connection.
func (a *account) shown(s *tls.ConnectionState) {
	if len(s.PeerCertificates) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.entry.Certificate = s.PeerCertificates[0].NotAfter
}

// What is kept of an error's text, as a webhook says what it likes: its beginning, and its end, where the cause stands.
const (
	maxError = 1024
	errorEnd = 768
)

func clip(s string) string {
	if len(s) > maxError {
		return strings.ToValidUTF8(s[:maxError-errorEnd], "") + "…" + strings.ToValidUTF8(s[len(s)-errorEnd:], "")
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
// is reported as 1.024 ms, the 99th percentile as 55 ms.
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

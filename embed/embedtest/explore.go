// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embedtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
)

// Run is one run of a controller under faults. It is a test of its own, an [embed.T]: an error of it makes [Explore] look for the fewest
// faults that lead to an error.
type Run struct {
	// Cluster is a fork in a bubble of testing/synctest, as with [Bubble]. Its own clients have no faults.
	Cluster *embed.Server
	// Rand is the run's source of random choices, by its seed.
	Rand *rand.Rand

	life     func() context.Context // the run's
	cancel   context.CancelFunc
	injector *injector

	controllers sync.WaitGroup
	cleanups    []func()

	mu     sync.Mutex
	errors []string
	log    []string
}

// Helper implements [embed.T].
func (r *Run) Helper() {}

// Context returns a context that ends with the run.
func (r *Run) Context() context.Context { return r.life() }

// Cleanup has f called at the end of the run, the last one first.
func (r *Run) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

// Logf adds a line to the log, which is printed if the run fails.
func (r *Run) Logf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, args...))
}

// Errorf records an error.
func (r *Run) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errors = append(r.errors, fmt.Sprintf(format, args...))
}

// fatal is the panic of Fatalf.
type fatal struct{}

// Fatalf records an error and ends the run. Only the function of the run may call it, not its goroutines.
func (r *Run) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	panic(fatal{})
}

// Control runs a controller until the run ends. The clients of its configuration, an administrator's, have the faults of the run. At a
// crash, the controller's context ends, and its requests with it; a second later Control calls it again. The controller returns when its
// context ends, and leaves no goroutines.
func (r *Run) Control(controller func(ctx context.Context, config *rest.Config) error) {
	r.controllers.Go(func() {
		for r.Context().Err() == nil {
			ctx, crash := context.WithCancel(r.Context())
			config := rest.CopyConfig(r.Cluster.Config())
			config.Wrap(r.injector.client(crash))
			config.Wrap(until(ctx))
			err := controller(ctx, config)
			if err != nil && ctx.Err() == nil {
				r.Logf("the controller returns: %v", err)
			}
			crash()
			select {
			case <-time.After(time.Second):
			case <-r.Context().Done():
			}
		}
	})
}

// Pause waits for a random while of up to 5 s, so that what follows happens at any point of the controller's work.
func (r *Run) Pause() {
	time.Sleep(time.Duration(r.Rand.Int64N(int64(5 * time.Second))))
}

// settling is the time for back-offs and what else waits for the clock. It is less than the five minutes after which client-go renews its
// watches: a controller that has missed something must not be woken by that.
const settling = 4 * time.Minute

// Settle ends the faults that are still to come, and gives the controllers four minutes.
func (r *Run) Settle() {
	r.injector.stop()
	r.Advance(settling)
}

// Advance runs what is due before the clock has advanced by d, and waits until nothing more happens.
func (r *Run) Advance(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// attempt runs f once. It returns the run, and its counts of requests.
func attempt(t *testing.T, from *embed.Server, seed uint64, faults []Fault, f func(r *Run)) *Run {
	t.Helper()
	r := &Run{injector: newInjector(faults), Rand: rand.New(rand.NewPCG(seed, 1))}
	now := time.Now().Round(0)
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(now))
		ctx, cancel := context.WithCancel(context.Background())
		r.life, r.cancel = func() context.Context { return ctx }, cancel
		r.Cluster = from.ForkInProcess(r)
		r.do(f)
		r.cancel()
		r.controllers.Wait()
		for i := len(r.cleanups) - 1; i >= 0; i-- {
			r.cleanups[i]()
		}
	})
	return r
}

// do calls f, and takes its Fatalf.
func (r *Run) do(f func(r *Run)) {
	defer func() {
		if v := recover(); v != nil {
			if _, ok := v.(fatal); !ok {
				panic(v)
			}
		}
	}()
	f(r)
}

// Explore runs f once without faults, and then once for each of so many seeds with up to three faults that the seed chooses: requests that
// are dropped, delayed and doubled, answers that are lost, conflicts, watches that end, crashes. F changes objects, starts the controller
// with [Run.Control], lets things settle with [Run.Settle], and checks what has become of the objects:
//
//	embedtest.Explore(t, prepared, 200, func(r *embedtest.Run) {
//		r.Control(mycontroller.Run)
//		create(r, "a")
//		r.Pause()
//		remove(r, "a")
//		r.Settle()
//		if … { r.Errorf("…") }
//	})
//
// When a run fails, Explore drops what is not needed for the failure, and reports the faults that remain, for [Replay]. Goroutines run as
// they like, so that a seed does not always do the same to the letter.
func Explore(t *testing.T, from *embed.Server, seeds int, f func(r *Run)) {
	t.Helper()
	if x := explore(t, from, seeds, f); x != nil {
		t.Error(x.String())
	}
}

// failure is a failed run, shrunk.
type failure struct {
	seed   uint64
	faults []Fault
	run    *Run
}

// String describes the failure, and how to see it again.
func (x *failure) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %s", x.seed, strings.Join(x.run.errors, "; "))
	for _, line := range x.run.log {
		fmt.Fprintf(&b, "\n  %s", line)
	}
	fmt.Fprintf(&b, "\nagain: embedtest.Replay(t, cluster, %d, []embedtest.Fault{", x.seed)
	for i, f := range x.faults {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(f.String())
	}
	b.WriteString("}, f)")
	return b.String()
}

// explore returns the first failure, nil if all seeds pass.
func explore(t *testing.T, from *embed.Server, seeds int, f func(r *Run)) *failure {
	t.Helper()
	usual := attempt(t, from, 0, nil, f)
	if len(usual.errors) > 0 {
		return &failure{run: usual}
	}
	for seed := uint64(1); seed <= uint64(seeds); seed++ {
		faults := choose(rand.New(rand.NewPCG(seed, 2)), usual.injector.counted)
		if r := attempt(t, from, seed, faults, f); len(r.errors) > 0 {
			return shrink(t, from, &failure{seed: seed, faults: faults, run: r}, f)
		}
	}
	return nil
}

// choose draws faults for a run that makes so many requests.
func choose(random *rand.Rand, counted map[string]int) []Fault {
	faults := make([]Fault, 1+random.IntN(3))
	for i := range faults {
		f := &faults[i]
		f.Kind = kinds[random.IntN(len(kinds))]
		f.At = 1 + random.IntN(counted[f.Kind.class()]+1)
		if f.Kind.delayed() {
			f.Delay = time.Duration(1+random.IntN(10_000)) * time.Millisecond
		}
	}
	return faults
}

// shrink drops what the failure does not need.
func shrink(t *testing.T, from *embed.Server, x *failure, f func(r *Run)) *failure {
	t.Helper()
	for i := 0; i < len(x.faults); {
		fewer := append(append([]Fault(nil), x.faults[:i]...), x.faults[i+1:]...)
		if r := attempt(t, from, x.seed, fewer, f); len(r.errors) > 0 {
			x.faults, x.run = fewer, r
		} else {
			i++
		}
	}
	return x
}

// Replay runs f with the faults of a failure that Explore has reported.
func Replay(t *testing.T, from *embed.Server, seed uint64, faults []Fault, f func(r *Run)) {
	t.Helper()
	r := attempt(t, from, seed, faults, f)
	for _, line := range r.log {
		t.Log(line)
	}
	for _, e := range r.errors {
		t.Error(e)
	}
}

// until returns a transport whose requests end with a context.
func until(ctx context.Context) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper { return &mortal{ctx.Done(), next} }
}

// mortal is the transport of a controller that may crash.
type mortal struct {
	dead <-chan struct{}
	next http.RoundTripper
}

// RoundTrip implements [http.RoundTripper].
func (m *mortal) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case <-m.dead:
		if r.Body != nil {
			_ = r.Body.Close()
		}
		return nil, errCrashed
	default:
		return m.next.RoundTrip(r)
	}
}

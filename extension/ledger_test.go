// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package extension

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

func TestLedgerCountsAndNames(t *testing.T) {
	c := clocktesting.NewFakeClock(time.Unix(1000, 0))
	l := NewLedger(c)
	ref := Ref{ContainerRuntime, "containerd"}
	if err := l.Call(t.Context(), ref, Policy{}, func(context.Context) error { c.Step(time.Second); return nil }); err != nil {
		t.Fatal(err)
	}
	broken := errors.New("socket is gone")
	err := l.Call(t.Context(), ref, Policy{}, func(context.Context) error { c.Step(3 * time.Second); return broken })
	if !errors.Is(err, broken) || err.Error() != `call cri "containerd": socket is gone` {
		t.Errorf("got error %v", err)
	}
	want := []Entry{{
		Ref: ref, State: Failing, P50: l.Snapshot()[0].P50, P99: 3 * time.Second, Latency: []int64{0, 0, 0, 0, 1, 1, 2, 2, 2}, Calls: 2,
		Failures: 1, Total: 4 * time.Second, Longest: 3 * time.Second, LastError: "socket is gone", LastFailure: time.Unix(1004, 0),
	}}
	if d := cmp.Diff(want, l.Snapshot()); d != "" {
		t.Error(d)
	}
}

func TestBreakerOpensTriesAndCloses(t *testing.T) {
	c := clocktesting.NewFakeClock(time.Unix(1000, 0))
	l := NewLedger(c)
	ref, p := Ref{ContainerRuntime, "x"}, Policy{Failures: 2, Pause: time.Minute}
	called := 0
	call := func(err error) error {
		return l.Call(t.Context(), ref, p, func(context.Context) error { called++; return err })
	}
	down := errors.New("down")
	call(down)
	call(down)
	if err := call(nil); !errors.Is(err, ErrOpen) || called != 2 {
		t.Fatalf("after two failures: error %v, called %d times, want ErrOpen and 2", err, called)
	}
	c.Step(time.Minute)
	if err := call(down); !errors.Is(err, down) || called != 3 {
		t.Fatalf("after the pause: error %v, called %d times, want one trial", err, called)
	}
	if err := call(nil); !errors.Is(err, ErrOpen) {
		t.Fatalf("after a failed trial: error %v, want ErrOpen", err)
	}
	c.Step(time.Minute)
	if err := call(nil); err != nil {
		t.Fatal(err)
	}
	if err := call(nil); err != nil || l.Snapshot()[0].State != OK {
		t.Fatalf("after a good trial: error %v, entry %+v", err, l.Snapshot()[0])
	}
}

func TestLedgerGivesADeadline(t *testing.T) {
	l := NewLedger(clocktesting.NewFakeClock(time.Unix(1000, 0)))
	err := l.Call(t.Context(), Ref{ContainerRuntime, "slow"}, Policy{Timeout: time.Nanosecond}, func(ctx context.Context) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a deadline", err)
	}
}

func TestPanicIsBooked(t *testing.T) {
	l := NewLedger(clocktesting.NewFakeClock(time.Unix(1000, 0)))
	func() {
		defer func() { _ = recover() }()
		l.Call(t.Context(), Ref{ContainerRuntime, "p"}, Policy{}, func(context.Context) error { panic("x") })
	}()
	if got := l.Snapshot(); len(got) != 1 || got[0].Failures != 1 || got[0].LastError != "panicked" {
		t.Errorf("got %+v", got)
	}
}

func TestCatalogueIsComplete(t *testing.T) {
	seen := map[Point]bool{}
	for _, d := range Points() {
		if seen[d.Point] {
			t.Errorf("%s is there twice", d.Point)
		}
		seen[d.Point] = true
		if d.Point == "" || d.Title == "" || d.Contract == "" || d.Configured == "" || d.Way == "" || d.Documented == "" {
			t.Errorf("row %+v has an empty cell", d)
		}
	}
}

func TestRegisteredAreListedUncalled(t *testing.T) {
	l := NewLedger(clocktesting.NewFakeClock(time.Unix(1000, 0)))
	a, b, c := Ref{ValidatingWebhook, "a.example.com"}, Ref{ValidatingWebhook, "b.example.com"}, Ref{KMS, "vault"}
	l.RegisterAll(ValidatingWebhook, map[string]string{a.Name: "ValidatingWebhookConfiguration/x", b.Name: "ValidatingWebhookConfiguration/x"})
	l.Register(c, "/etc/encryption.yaml")
	if err := l.Call(t.Context(), b, Policy{}, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	l.RegisterAll(ValidatingWebhook, map[string]string{b.Name: "ValidatingWebhookConfiguration/y"})
	got := l.Snapshot()
	if len(got) != 2 || got[0].Ref != c || got[0].State != Unused || got[0].Where != "/etc/encryption.yaml" ||
		got[1].Ref != b || got[1].State != OK || got[1].Calls != 1 || got[1].Where != "ValidatingWebhookConfiguration/y" {
		t.Fatalf("got %+v", got)
	}
	err := l.Call(t.Context(), c, Policy{}, func(context.Context) error { l.Unregister(c); return nil })
	if got := l.Snapshot(); err != nil || len(got) != 1 {
		t.Errorf("unregistered during a call: error %v, left %+v", err, got)
	}
	late := func(ref Ref) { // calls that somebody makes who has not heard yet
		t.Helper()
		for range 2 {
			_ = l.Call(t.Context(), ref, Policy{}, func(context.Context) error { return errors.New("gone") })
			l.Book(ref, time.Second, nil)
		}
		if got := l.Snapshot(); slices.ContainsFunc(got, func(e Entry) bool { return e.Ref == ref }) {
			t.Errorf("a call after it was unregistered lists %s again: %+v", ref.Name, got)
		}
	}
	late(c)
	late(a)
	l.Register(c, "/etc/other.yaml")
	if err := l.Call(t.Context(), c, Policy{}, func(context.Context) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got := l.Snapshot(); len(got) != 2 || got[0].Ref != c || got[0].Calls != 1 || got[0].Where != "/etc/other.yaml" {
		t.Errorf("registered again: %+v", got)
	}
	for i := range maxGone + 1 { // what is remembered of those that are gone is bounded
		ref := Ref{ConversionWebhook, fmt.Sprint(i)}
		l.Register(ref, "x")
		l.Unregister(ref)
	}
	if len(l.gone) > maxGone || len(l.entries) != 2 {
		t.Errorf("%d are remembered to be gone, %d are listed", len(l.gone), len(l.entries))
	}
}

func TestRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger(clock.RealClock{})
		ref, down := Ref{AuditWebhook, "x"}, errors.New("down")
		p := Policy{Retries: 3, Backoff: time.Second, Factor: 2, Retry: func(err error) bool { return errors.Is(err, down) }}
		begun, n := time.Now(), 0
		err := l.Call(t.Context(), ref, p, func(context.Context) error {
			if n++; n < 3 {
				return down
			}
			return nil
		})
		if took := time.Since(begun); err != nil || n != 3 || took != 3*time.Second {
			t.Errorf("error %v after %d tries in %s, want none after 3 in 3s", err, n, took)
		}
		n = 0
		if err := l.Call(t.Context(), ref, p, func(context.Context) error { n++; return down }); !errors.Is(err, down) || n != 4 {
			t.Errorf("error %v after %d tries, want down after 4", err, n)
		}
		n = 0
		if err := l.Call(t.Context(), ref, p, func(context.Context) error { n++; return errors.New("wrong") }); err == nil || n != 1 {
			t.Errorf("what is not to be repeated: error %v after %d tries", err, n)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		n = 0
		if err := l.Call(ctx, ref, p, func(context.Context) error { n++; return down }); !errors.Is(err, down) || n != 1 {
			t.Errorf("a caller that left: error %v after %d tries", err, n)
		}
	})
}

func TestQuantiles(t *testing.T) {
	var s sketch
	for range 98 {
		s.add(900 * time.Microsecond)
	}
	s.add(50 * time.Millisecond)
	s.add(50 * time.Millisecond)
	near := func(got, want time.Duration) bool { return got >= want && float64(got) <= 1.2*float64(want) }
	if got := s.quantile(0.5); !near(got, 900*time.Microsecond) {
		t.Errorf("median %s", got)
	}
	if got := s.quantile(0.99); !near(got, 50*time.Millisecond) {
		t.Errorf("99th %s", got)
	}
	for range 3 * many {
		s.add(2 * time.Second)
	}
	s.add(24 * time.Hour)
	if got := s.quantile(0.5); !near(got, 2*time.Second) || s.total > many {
		t.Errorf("after many: median %s of %d", got, s.total)
	}
}

func TestCertificateOfTheExtensionIsSeen(t *testing.T) {
	srv := httptest.NewTLSServer(http.NotFoundHandler())
	defer srv.Close()
	l := NewLedger(clock.RealClock{})
	for _, name := range []string{"makes the connection", "uses it"} {
		reused := false
		err := l.Call(t.Context(), Ref{TokenWebhook, name}, Policy{}, func(ctx context.Context) error {
			ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { reused = i.Reused }})
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, srv.URL, nil)
			if err != nil {
				return err
			}
			resp, err := srv.Client().Do(r)
			if err != nil {
				return err
			}
			_, err = io.Copy(io.Discard, resp.Body)
			return errors.Join(err, resp.Body.Close())
		})
		if err != nil || reused != (name == "uses it") {
			t.Fatalf("error %v, the connection was there: %t", err, reused)
		}
	}
	for _, e := range l.Snapshot() {
		if !e.Certificate.Equal(srv.Certificate().NotAfter) {
			t.Errorf("who %s: certificate ends %s, want %s", e.Name, e.Certificate, srv.Certificate().NotAfter)
		}
	}
}

func BenchmarkCall(b *testing.B) {
	l := NewLedger(clock.RealClock{})
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			if err := l.Call(b.Context(), Ref{KMS, "x"}, Policy{}, func(context.Context) error { return nil }); err != nil {
				b.Error(err)
			}
		}
	})
}

// TestBreakerOneTrial: of the calls that come after the pause one is made, and those that began before the breaker opened neither
// let another through nor prolong the pause.
func TestBreakerOneTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := NewLedger(clock.RealClock{})
		var turns []bool
		ref, p := Ref{ValidatingWebhook, "x"}, Policy{Failures: 2, Pause: time.Minute, Turned: func(open bool) { turns = append(turns, open) }}
		down := errors.New("down")
		call := func(f func() error) error {
			return l.Call(t.Context(), ref, p, func(context.Context) error { return f() })
		}
		fails := func() error { return down }
		old := make(chan error)
		go func() { _ = call(func() error { return <-old }) }()
		synctest.Wait()
		call(fails)
		call(fails)
		time.Sleep(time.Minute)
		trial := make(chan error)
		ended := make(chan error)
		go func() { ended <- call(func() error { return <-trial }) }()
		synctest.Wait()
		old <- down
		synctest.Wait()
		if err := call(fails); !errors.Is(err, ErrOpen) {
			t.Errorf("a second trial beside the first: %v", err)
		}
		trial <- nil
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if err := call(func() error { return nil }); err != nil {
			t.Error(err)
		}
		if diff := cmp.Diff([]bool{true, false}, turns); diff != "" {
			t.Error(diff)
		}
	})
}

// TestBreakerExcusesAndForgives: an excused failure is booked and opens nothing; whom things have changed for is called at once; so is
// whose breaker was taken away.
func TestBreakerExcusesAndForgives(t *testing.T) {
	l := NewLedger(clocktesting.NewFakeClock(time.Unix(1000, 0)))
	gone := errors.New("caller went away")
	ref, p := Ref{MutatingWebhook, "x"}, Policy{Failures: 1, Pause: time.Minute, Excused: func(err error) bool { return errors.Is(err, gone) }}
	call := func(p Policy, err error) error {
		return l.Call(t.Context(), ref, p, func(context.Context) error { return err })
	}
	call(p, gone)
	if e := l.Snapshot()[0]; e.State != Failing || e.Failures != 1 {
		t.Errorf("after an excused failure: %+v", e)
	}
	down := errors.New("down")
	call(p, down)
	if err := call(p, nil); !errors.Is(err, ErrOpen) {
		t.Errorf("after a failure: %v", err)
	}
	l.Forgive(ref)
	if err := call(p, down); !errors.Is(err, down) {
		t.Errorf("after it was forgiven: %v", err)
	}
	if err := call(Policy{}, nil); err != nil || l.Snapshot()[0].State != OK {
		t.Errorf("without a breaker: %v, %+v", err, l.Snapshot()[0])
	}
	l.Forgive(Ref{MutatingWebhook, "unknown"})
}

func TestLongErrorsKeepTheirCause(t *testing.T) {
	l := NewLedger(clock.RealClock{})
	ref := Ref{ValidatingWebhook, "x"}
	long := errors.New("post " + strings.Repeat("é", maxError) + ": connection refused")
	_ = l.Call(t.Context(), ref, Policy{}, func(context.Context) error { return long })
	got := l.Snapshot()[0].LastError
	if !strings.HasPrefix(got, "post é") || !strings.HasSuffix(got, "é: connection refused") || len(got) > maxError+len("…") ||
		strings.ToValidUTF8(got, "?") != got {
		t.Errorf("%d bytes: %.40q … %q", len(got), got, got[len(got)-40:])
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	typedeventsv1 "k8s.io/client-go/kubernetes/typed/events/v1"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
)

// request is what a server was asked.
type request struct {
	Verb, Namespace, Name string
	Event                 *eventsv1.Event // of a create
	Patch                 string          // of a patch
	kind                  types.PatchType
	at                    time.Time
}

// server answers requests for events, and keeps them. It is the fake of a client's group.
type server struct {
	answer func(*request) error // nil: all is well

	mu       sync.Mutex
	requests []*request
	under    int // way, now
	highest  int // that was
}

func (*server) RESTClient() rest.Interface { return nil }

// Events are a namespace's.
func (s *server) Events(namespace string) typedeventsv1.EventInterface {
	return room{server: s, namespace: namespace}
}

// underWay is how many requests are not answered.
func (s *server) underWay() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.under
}

// asked are the requests so far.
func (s *server) asked() []*request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*request(nil), s.requests...)
}

// said is asked, in short.
func (s *server) said() string {
	var out []string
	for _, r := range s.asked() {
		what := r.Patch
		if r.Event != nil {
			what = r.Event.Note
		}
		out = append(out, r.Verb+" "+what)
	}
	return strings.Join(out, ", ")
}

func (s *server) do(r *request) error {
	r.at = time.Now()
	s.mu.Lock()
	s.requests = append(s.requests, r)
	s.under++
	s.highest = max(s.highest, s.under)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.under--
		s.mu.Unlock()
	}()
	if s.answer == nil {
		return nil
	}
	return s.answer(r)
}

type room struct {
	typedeventsv1.EventInterface
	server    *server
	namespace string
}

func (r room) Create(_ context.Context, e *eventsv1.Event, _ metav1.CreateOptions) (*eventsv1.Event, error) {
	return e, r.server.do(&request{Verb: "create", Namespace: r.namespace, Name: e.Name, Event: e.DeepCopy()})
}

func (r room) Patch(_ context.Context, name string, kind types.PatchType, data []byte, _ metav1.PatchOptions,
	sub ...string) (*eventsv1.Event, error) {
	return nil, r.server.do(&request{Verb: "patch", Namespace: r.namespace, Name: name + strings.Join(sub, "/"), Patch: string(data),
		kind: kind})
}

// start runs a recorder in a bubble until it is stopped, which is at the test's end at the latest.
func start(t *testing.T, r *Recorder) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { r.Run(ctx); close(ended) }()
	stop = func() { cancel(); <-ended }
	t.Cleanup(stop)
	synctest.Wait()
	return stop
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), ResourceVersion: "7"}}
}

// tell reports one event of each pod.
func tell(r *Reporter, from, to int) {
	for i := from; i < to; i++ {
		r.Eventf(pod(fmt.Sprint("p", i)), nil, corev1.EventTypeNormal, "Scheduled", "Binding", "event %d", i)
	}
}

// TestGivesWay: one writer goes on while others are asked to give way, and all of them when nobody asks.
func TestGivesWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		s := &server{answer: func(*request) error { <-answers; return nil }}
		r := New(s, Options{})
		start(t, r)
		is := func(when string, want int) {
			t.Helper()
			synctest.Wait()
			if got := s.underWay(); got != want {
				t.Errorf("%s: %d writers, want %d", when, got, want)
			}
		}
		r.Throttle()
		r.Throttle()
		tell(r.For("x"), 0, 40)
		is("two under way", 1)
		for range 5 {
			answers <- struct{}{}
			is("two under way, one event written", 1)
		}
		r.Unthrottle()
		is("one of two over", 1)
		r.Unthrottle()
		is("both over", most)
		r.Throttle()
		for range most - 1 {
			answers <- struct{}{}
		}
		is("another under way, and those that wrote have", 1)
		r.Unthrottle()
		is("over", most)
		close(answers)
		is("no event left", 0)
		if n := len(s.asked()); n != 40 {
			t.Errorf("%d events written, want 40", n)
		}
		tell(r.For("x"), 40, 43)
		synctest.Wait()
		if n := len(s.asked()); n != 43 {
			t.Errorf("%d events written, want 43: writers do not wake", n)
		}
	})
}

// TestManyWaiting: where as many wait as the bound says all writers go, until there are fewer.
func TestManyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		s := &server{answer: func(*request) error { <-answers; return nil }}
		r := New(s, Options{Pending: 50})
		start(t, r)
		r.Throttle()
		tell(r.For("x"), 0, 49)
		synctest.Wait()
		if n := s.underWay(); n != 1 {
			t.Errorf("%d writers with 49 events, want 1", n)
		}
		tell(r.For("x"), 49, 50)
		synctest.Wait()
		if n := s.underWay(); n != most {
			t.Errorf("%d writers with 50 events, want %d", n, most)
		}
		for range most {
			answers <- struct{}{}
		}
		synctest.Wait()
		if n := s.underWay(); n != 1 {
			t.Errorf("%d writers with %d events, want 1", n, 50-most)
		}
		close(answers)
	})
}

// TestBackpressure: at twice the bound who reports waits for room, or for the end.
func TestBackpressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan struct{})
		s := &server{answer: func(*request) error { <-answers; return nil }}
		r := New(s, Options{Pending: 20})
		stop := start(t, r)
		told := make(chan int, 100)
		for i := range 80 {
			go func() { tell(r.For("x"), i, i+1); told <- i }()
		}
		synctest.Wait()
		if n := len(told); n != 40 {
			t.Errorf("%d were told, want 40", n)
		}
		answers <- struct{}{}
		answers <- struct{}{}
		synctest.Wait()
		if n := len(told); n != 42 {
			t.Errorf("%d were told when there was room for two more, want 42", n)
		}
		go func() { synctest.Wait(); close(answers) }() // those under way are answered once the end has come
		stop()
		synctest.Wait()
		if n := len(told); n != 80 {
			t.Errorf("%d returned after the end, want 80", n)
		}
		tell(r.For("x"), 80, 82) // forgotten at once
		if n := len(s.asked()); n > 2+most {
			t.Errorf("%d events were begun, want no more than %d", n, 2+most)
		}
	})
}

// TestBeforeRun: what is told before is written then.
func TestBeforeRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		r := New(s, Options{})
		r.Throttle()
		tell(r.For("x"), 0, 30)
		r.Unthrottle()
		start(t, r)
		if n := len(s.asked()); n != 30 || s.highest > most {
			t.Errorf("%d events written by %d at once, want 30 by at most %d", n, s.highest, most)
		}
	})
}

// TestEventsOfAnEndingRecorder: an event that cannot be written is told of while the recorder runs, and not once it stops.
func TestEventsOfAnEndingRecorder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		begun, answers := make(chan struct{}, 100), make(chan error)
		s := &server{answer: func(*request) error { begun <- struct{}{}; return <-answers }}
		r := New(s, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
		stop := start(t, r)
		tell(r.For("x"), 0, 1)
		<-begun
		answers <- fmt.Errorf("no")
		synctest.Wait()
		if !strings.Contains(log.String(), "Could not write the event") {
			t.Errorf("nothing is said of an event that cannot be written: %s", log.String())
		}
		log.Reset()
		tell(r.For("x"), 1, 30) // the first waits to be tried again, some are under way, some wait
		synctest.Wait()
		ended := make(chan struct{})
		go func() { stop(); close(ended) }()
		synctest.Wait()
		select {
		case <-ended:
			t.Error("it ended before its writers did")
		default:
		}
		for range most {
			answers <- context.Canceled
		}
		<-ended
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(s.asked()); log.Len() > 0 || n != 1+most {
			t.Errorf("said at the end, after %d requests: %s", n, log.String())
		}
	})
}

// TestFakeClock: a clock that calls back under its own lock is none that the recorder waits for under its own.
func TestFakeClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := clocktesting.NewFakeClock(time.Now())
		failed := false
		s := &server{}
		s.answer = func(*request) error {
			if !failed {
				failed = true
				return fmt.Errorf("no")
			}
			return nil
		}
		r := New(s, Options{Clock: clock})
		start(t, r)
		tell(r.For("x"), 0, 1)
		synctest.Wait()
		for range 13 {
			go tell(r.For("x"), 0, 1)
			go clock.Step(time.Second)
		}
		synctest.Wait()
		clock.Step(time.Hour)
		synctest.Wait()
		if got := s.said(); strings.Count(got, "create") != 2 || strings.Count(got, "patch") != 2 {
			t.Errorf("asked %s, want a create and another, a patch and a last one", got)
		}
	})
}

// TestAtOnce is for the race detector: reporters, attempts and the clock do as they like, and every event is written once.
func TestAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(*request) error { time.Sleep(time.Millisecond); return nil }}
		r := New(s, Options{Pending: 100})
		start(t, r)
		var all sync.WaitGroup
		const tellers, each = 20, 100
		for i := range tellers {
			all.Go(func() {
				for j := range each {
					r.Throttle()
					tell(r.For("x"), i*each+j, i*each+j+1)
					if j%10 == 0 {
						tell(r.For("common"), 0, 1)
					}
					time.Sleep(time.Duration(j%3) * time.Millisecond)
					r.Unthrottle()
				}
			})
		}
		all.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		names, patches := map[string]bool{}, 0
		for _, q := range s.asked() {
			if q.Verb == "patch" {
				patches++
			} else {
				names[q.Name] = true
			}
		}
		if len(names) != tellers*each+1 || patches != 1 || len(s.asked()) != len(names)+1 {
			t.Errorf("%d events and %d patches in %d requests, want %d and 1", len(names), patches, len(s.asked()), tellers*each+1)
		}
		if r.pending != 0 || len(r.open) != 0 || r.writing != 0 || r.woken != 0 || len(r.idle) != most {
			t.Errorf("left: %d pending, %d open, %d writing, %d woken; %d idle", r.pending, len(r.open), r.writing, r.woken, len(r.idle))
		}
	})
}

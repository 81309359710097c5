// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestRepetitions: within six minutes an event like another makes a series, later it is one of its own. Sweeps come every six minutes.
func TestRepetitions(t *testing.T) {
	for _, c := range []struct {
		first, later time.Duration
		series       bool
	}{
		{time.Minute, 0, true},
		{time.Minute, time.Minute, true},
		{5 * time.Minute, 5 * time.Minute, true},
		{5 * time.Minute, finishTime, true},
		{5 * time.Minute, finishTime + 1, false},
		{time.Minute, finishTime + 1, false},
		{time.Minute, 20 * time.Minute, false},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := &server{}
			r := New(s, Options{})
			start(t, r)
			time.Sleep(c.first)
			tell(r.For("x"), 0, 1)
			time.Sleep(c.later)
			tell(r.For("x"), 0, 1)
			synctest.Wait()
			want := "create event 0, create event 0"
			if c.series {
				want = fmt.Sprintf(`create event 0, patch {"series":{"count":2,"lastObservedTime":%q}}`, time.Now().UTC().Format(metav1.RFC3339Micro))
			}
			if got := s.said(); got != want {
				t.Errorf("%v after the first, at %v: %s, want %s", c.later, c.first, got, want)
			}
		})
	}
}

// TestSeriesLife: a series' third event only counts, its count is written every half hour, and once more six minutes after the last; then
// nothing is left.
func TestSeriesLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{}
		r := New(s, Options{})
		start(t, r)
		time.Sleep(time.Second) // so that no event is at a sweep's time
		tell(r.For("x"), 1, 2)  // stays single
		synctest.Wait()
		for range 32 {
			tell(r.For("x"), 0, 1)
			time.Sleep(time.Minute)
		}
		last := time.Now().Add(-time.Minute)
		if n := len(s.asked()); n != 4 {
			t.Fatalf("asked %s", s.said())
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		got := s.asked()
		if len(got) != 5 {
			t.Fatalf("asked %s", s.said())
		}
		name := got[1].Name
		for i, want := range []string{`"count":2,`, `"count":30,`, `"count":32,`} {
			if q := got[i+2]; q.Name != name || !strings.Contains(q.Patch, want) {
				t.Errorf("patched %s with %s, want %s in %s", q.Name, q.Patch, want, name)
			}
		}
		if got[4].Patch != fmt.Sprintf(`{"series":{"count":32,"lastObservedTime":%q}}`, last.UTC().Format(metav1.RFC3339Micro)) {
			t.Errorf("the last count is %s", got[4].Patch)
		}
		if len(r.series)+len(r.recent.newer)+len(r.recent.older)+len(r.open)+r.pending != 0 {
			t.Errorf("left: %d series, %d and %d singles, %d open, %d pending", len(r.series), len(r.recent.newer), len(r.recent.older), len(r.open),
				r.pending)
		}
	})
}

// TestSeriesWithoutEvent: a series whose event the server has no more is written as an event, with the newer note.
func TestSeriesWithoutEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &server{answer: func(q *request) error {
			if q.Verb == "patch" {
				return apierrors.NewNotFound(corev1.Resource("events"), q.Name)
			}
			return nil
		}}
		r := New(s, Options{})
		start(t, r)
		for i := range 2 {
			r.For("x").Eventf(pod("p"), nil, "Normal", "R", "A", "note %d", i)
			time.Sleep(time.Second)
		}
		got := s.asked()
		if len(got) != 3 || got[2].Name != got[0].Name || got[2].Event.Note != "note 1" || got[2].Event.Series.Count != 2 ||
			!got[2].Event.EventTime.Equal(&got[0].Event.EventTime) {
			t.Errorf("asked %s; %+v", s.said(), got[len(got)-1].Event)
		}
	})
}

// TestOrderOfAKey: what is written of a key waits until what was written before of it is, however that fares, and keeps nothing else up.
func TestOrderOfAKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answers := make(chan error)
		s := &server{answer: func(q *request) error {
			if strings.HasPrefix(q.Name, "p0.") && q.Verb == "create" {
				return <-answers
			}
			return nil
		}}
		r := New(s, Options{})
		start(t, r)
		for range 3 {
			tell(r.For("x"), 0, 1)
		}
		tell(r.For("x"), 1, 3)
		synctest.Wait()
		others := strings.Count(s.said(), "create event 1") + strings.Count(s.said(), "create event 2")
		if len(s.asked()) != 3 || others != 2 {
			t.Errorf("asked %s", s.said())
		}
		answers <- fmt.Errorf("no")
		synctest.Wait()
		if strings.Contains(s.said(), "patch") {
			t.Errorf("patched what is to be tried again: %s", s.said())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if strings.Count(s.said(), "create event 0") != 2 {
			t.Errorf("not tried again: %s", s.said())
		}
		r.sweep(time.Now().UnixNano(), true) // another patch that has to wait
		answers <- nil
		synctest.Wait()
		if got := s.said(); !strings.HasSuffix(got,
			`create event 0, patch {"series":{"count":2,"lastObservedTime":"2000-01-01T00:00:00.000000Z"}}, `+
				`patch {"series":{"count":3,"lastObservedTime":"2000-01-01T00:00:00.000000Z"}}`) {
			t.Errorf("asked %s", got)
		}
	})
}

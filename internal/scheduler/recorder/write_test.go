// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package recorder

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// TestRetries: what the server refuses is given up, what does not reach it is tried twelve times, ten seconds apart and a quarter more at
// most.
func TestRetries(t *testing.T) {
	events := corev1.Resource("events")
	missing := apierrors.NewNotFound(events, "e")
	for name, c := range map[string]struct {
		create, patch error
		series        bool
		requests      int
		said          string // at last; empty: nothing
	}{
		"all is well": {requests: 1},
		"cannot be asked": {create: &rest.RequestConstructionError{Err: errors.New("no")}, requests: 1,
			said: "Could not create the request for an event"},
		"refused": {create: apierrors.NewForbidden(events, "e", nil), requests: 1, said: "Server rejected the event"},
		"refused, wrapped": {create: fmt.Errorf("post: %w", apierrors.NewForbidden(events, "e", nil)), requests: 1,
			said: "Server rejected the event"},
		"exists":         {create: apierrors.NewAlreadyExists(events, "e"), requests: 1},
		"no connection":  {create: errors.New("refused"), requests: maxTries, said: "Could not write the event, giving up"},
		"unexpected":     {create: &apierrors.UnexpectedObjectError{}, requests: maxTries, said: "Could not write the event, giving up"},
		"series":         {series: true, requests: 2},
		"series refused": {series: true, patch: apierrors.NewForbidden(events, "e", nil), requests: 2, said: "Server rejected the event"},
		"series, no connection": {series: true, patch: errors.New("refused"), requests: 1 + maxTries,
			said: "Could not write the event, giving up"},
		"series, there then": {series: true, patch: missing, create: apierrors.NewAlreadyExists(events, "e"), requests: 1 + 2*maxTries,
			said: "Could not write the event, giving up"},
		"series, made by create": {series: true, patch: missing, requests: 3},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				s := &server{answer: func(q *request) error {
					switch {
					case q.Verb == "patch":
						return c.patch
					case c.series && q.Event.Series == nil:
						return nil
					}
					return c.create
				}}
				r := New(s, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				start(t, r)
				r.Throttle() // a single writer, which nothing may block
				tell(r.For("x"), 0, 1)
				if c.series {
					tell(r.For("x"), 0, 1)
				}
				synctest.Wait()
				began := time.Now()
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				got := s.asked()
				if len(got) != c.requests {
					t.Fatalf("%d requests, want %d: %s", len(got), c.requests, s.said())
				}
				if total := got[len(got)-1].at.Sub(began); c.requests >= maxTries &&
					(total < (maxTries-1)*retryAfter || total > (maxTries-1)*retryAfter*5/4) {
					t.Errorf("tried for %v", total)
				}
				if !strings.Contains(log.String(), c.said) || c.said == "" && log.Len() > 0 {
					t.Errorf("said %q, want %q", log.String(), c.said)
				}
				if r.pending != 0 || len(r.open) != 0 || len(r.retrying) != 0 {
					t.Errorf("left: %d pending, %d open, %d retrying", r.pending, len(r.open), len(r.retrying))
				}
			})
		})
	}
}

// TestRetriesHoldNobodyUp: while an event waits to be tried again the only writer writes others.
func TestRetriesHoldNobodyUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failed := false
		s := &server{}
		s.answer = func(q *request) error {
			if strings.HasPrefix(q.Name, "p0.") && !failed {
				failed = true
				return errors.New("no")
			}
			return nil
		}
		r := New(s, Options{})
		start(t, r)
		r.Throttle()
		tell(r.For("x"), 0, 3)
		synctest.Wait()
		if got, want := s.said(), "create event 0, create event 1, create event 2"; got != want {
			t.Errorf("asked %s, want %s", got, want)
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got, want := s.said(), "create event 0, create event 1, create event 2, create event 0"; got != want {
			t.Errorf("asked %s, want %s", got, want)
		}
	})
}

// TestRefusedSeriesEnd: a series that the server refuses is not written again when it has ended, and what happens in a namespace that is
// deleted is nothing to warn of.
func TestRefusedSeriesEnd(t *testing.T) {
	namespaces := schema.GroupResource{Resource: "namespaces"}
	terminating := apierrors.NewForbidden(corev1.Resource("events"), "e", errors.New("because it is being terminated"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, c := range map[string]struct {
		refusal  error
		warnings int
	}{
		"namespace gone":        {apierrors.NewNotFound(namespaces, "ns"), 0},
		"namespace terminating": {terminating, 0},
		"forbidden":             {apierrors.NewForbidden(corev1.Resource("events"), "e", nil), 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var log bytes.Buffer
				s := &server{answer: func(q *request) error {
					switch {
					case q.Verb == "patch":
						return apierrors.NewNotFound(corev1.Resource("events"), q.Name)
					case q.Event.Series == nil:
						return nil
					}
					return c.refusal
				}}
				r := New(s, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				start(t, r)
				tell(r.For("x"), 0, 1)
				tell(r.For("x"), 0, 1)
				time.Sleep(2 * time.Hour)
				synctest.Wait()
				if got := s.asked(); len(got) != 3 {
					t.Errorf("%d requests: %s", len(got), s.said())
				}
				if got := strings.Count(log.String(), "\n"); got != c.warnings {
					t.Errorf("said %q", log.String())
				}
			})
		})
	}
}

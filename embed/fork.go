// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/internal/cluster"
)

// T is the test that a cluster is for: a *testing.T, *testing.B or *testing.F. It is an interface so that a program with this library
// does not have the flags of package testing.
type T interface {
	Helper()
	Cleanup(f func())
	Logf(format string, args ...any)
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Context() context.Context
}

// Fork returns an independent cluster that begins where this one stands: with its objects, its history, its settings and its
// certificates, but with a port, an API server, controllers and nodes of its own. Neither sees what the other does from then on. It
// stops when the test ends.
//
// The two share what neither changes, so that Fork takes the same, short time for any number of objects. The API server and the
// controllers of the fork start at its first request, which takes as long as a start. Only a store in memory can be forked.
func (s *Server) Fork(t T) *Server {
	t.Helper()
	return forked(s, t, s.cluster.Fork)
}

// ForkInProcess is Fork without a port and a socket: only clients of [Server.Config] and [Server.As] in this process reach the fork, and
// its nodes serve no logs. No goroutine of it waits for the network, so that it can run in a bubble of testing/synctest: function Bubble
// of package embedtest.
func (s *Server) ForkInProcess(t T) *Server {
	t.Helper()
	return forked(s, t, s.cluster.ForkInProcess)
}

func forked(s *Server, t T, fork func(context.Context) (*cluster.Cluster, error)) *Server {
	t.Helper()
	c, err := fork(t.Context())
	if err != nil {
		t.Fatalf("%v", err)
	}
	f := *s
	f.KubeconfigFile, f.Listen, f.cluster = "", "", c
	t.Cleanup(func() {
		if err := f.Stop(); err != nil {
			t.Errorf("stop fork: %v", err)
		}
	})
	return &f
}

// Reset takes a fork back to where it began. Its clients stay valid; their connections end, and their watches begin anew. It is an
// error for a cluster that is no fork.
func (s *Server) Reset() error { return s.cluster.Reset() }

// Revision returns the newest revision of the store: the resourceVersion of the last write. It is 0 if the store is not in memory.
func (s *Server) Revision() int64 { return s.cluster.Revision() }

// At returns an administrator's configuration of clients that read the cluster as it was at a revision, as long as the store keeps
// the history. They cannot write. What they reach ends with the test.
func (s *Server) At(t T, revision int64) *rest.Config {
	t.Helper()
	past, err := s.cluster.ForkAt(t.Context(), revision)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() {
		if err := past.Stop(); err != nil {
			t.Errorf("stop fork: %v", err)
		}
	})
	config := past.Config()
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return readOnly{next, revision} })
	return config
}

// AtTime is [Server.At] at the newest revision of a time: the cluster as it was then. The store knows the time of each write of the
// past ten minutes, as long as it keeps the history.
func (s *Server) AtTime(t T, when time.Time) *rest.Config {
	t.Helper()
	revision, err := s.cluster.RevisionAt(when)
	if err != nil {
		t.Fatalf("fork cluster: %v", err)
	}
	return s.At(t, revision)
}

// errPast is the error of a write to the past.
var errPast = errors.New("the past cannot be changed")

// readOnly refuses requests that change objects.
type readOnly struct {
	next     http.RoundTripper
	revision int64
}

// RoundTrip implements [http.RoundTripper].
func (r readOnly) RoundTrip(q *http.Request) (*http.Response, error) {
	review := q.Method == http.MethodPost && strings.HasPrefix(q.URL.Path, "/apis/authorization.k8s.io/")
	if q.Method == http.MethodGet || q.Method == http.MethodHead || review {
		return r.next.RoundTrip(q)
	}
	return nil, fmt.Errorf("%s %s at revision %d: %w", q.Method, q.URL.Path, r.revision, errPast)
}

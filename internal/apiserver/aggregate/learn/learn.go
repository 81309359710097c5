// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package learn runs discovery of aggregated API servers in the background, and keeps the last results.
//
// A [Learner] has two workers for each server: one for discovery, one for OpenAPI. Each sends one request at a time, with a
// deadline, a bound on the size of the response, and the previous response's ETag: immediately when an APIService of the
// server is new or becomes available, then every minute, and after failures with growing pauses. It publishes the result as
// one immutable state ([Learner.Discovery], [Learner.OpenAPI]), whose pointer changes only with its content; so a request
// for documents waits for no server, and computes nothing again.
//
// Worked example: v1.a and v2.a are on one server, v1.b on another. The learner requests /apis of the first server once,
// for both versions. The other server responds with garbage: v1.b keeps its last result, now marked Stale, one log message
// names it, and nothing else changes. When the server works again, v1.b is Current after the next request, without a
// restart.
//
// # Concurrency
//
// All methods are safe for concurrent use. [Learner.Run] owns the workers and ends them.
package learn

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/apiserver/discovery"
	"github.com/mortise-dev/mortise/internal/apiserver/openapi"
)

const (
	// period is the interval at which a server is asked again.
	period = time.Minute
	// The deadline of a request, and the maximum size of its response.
	discoveryTime, openapiTime = 5 * time.Second, time.Minute
	discoverySize, openapiSize = 16 << 20, 64 << 20
	// The pauses after failures double from the first to the longest.
	firstDiscoveryPause, longestDiscoveryPause = 500 * time.Millisecond, period
	firstOpenAPIPause, longestOpenAPIPause     = time.Minute, time.Hour
)

// Remote is one group version that another server serves, by its APIService.
type Remote struct {
	Name                           string // of the APIService
	Group, Version                 string
	GroupPriority, VersionPriority int
	// Server identifies the server: registrations with equal ones get one request.
	Server string
	// State identifies the state of the registration and whether its server is available. A change triggers a new
	// request.
	State string
	// Unavailable is true while requests are not forwarded: the server is then not asked, and its results are not used.
	Unavailable bool
	// Base is the URL of the server. Discovery and OpenAPI are the transports for both, with the identities that may
	// read them.
	Base               *url.URL
	Discovery, OpenAPI http.RoundTripper
}

func (r *Remote) gv() schema.GroupVersion {
	return schema.GroupVersion{Group: r.Group, Version: r.Version}
}

// Options of [New]. Remotes and Changed are required.
type Options struct {
	// Remotes returns all group versions that other servers serve now.
	Remotes func() []Remote
	// Changed returns a channel that is closed when the result of Remotes changes.
	Changed func() <-chan struct{}
	// Told is called after each discovery, with its error (mostly a [Trouble]); nil: it succeeded. It must not block for
	// long. Nil: no call.
	Told  func(r *Remote, err error)
	Log   *slog.Logger
	Clock clock.Clock

	published func() // called after each state; nil: no call
}

// Learner runs discovery of other servers and holds the results.
type Learner struct {
	o Options

	mu      sync.Mutex
	remotes []Remote // sorted by name
	servers map[string]*server
	workers sync.WaitGroup

	discovery atomic.Pointer[discovery.Remote]
	openapi   atomic.Pointer[openapi.Remote]
}

// server is the state of one server.
type server struct {
	learner *Learner
	name    string
	stop    context.CancelFunc
	remotes []Remote // its own, by name; guarded by the learner's mutex
	wake    [2]chan struct{}

	// The server's last results, each guarded by the learner's mutex and written by its own worker.
	etag     string
	versions map[schema.GroupVersion]version
	api      described

	doubts map[string]string // states of the APIServices without a result, by name; only the discovery worker uses it
}

// version is the result for one version of a server.
type version struct {
	document apidiscoveryv2.APIVersionDiscovery
	current  bool
}

// New makes a learner without results.
func New(o Options) *Learner {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Learner{o: o, servers: map[string]*server{}}
}

// Discovery returns the resources of other servers; nil: there are none.
func (l *Learner) Discovery() *discovery.Remote { return l.discovery.Load() }

// OpenAPI returns the documents of other servers; nil: there are none.
func (l *Learner) OpenAPI() *openapi.Remote { return l.openapi.Load() }

// Run asks the servers until ctx ends.
func (l *Learner) Run(ctx context.Context) {
	defer l.workers.Wait()
	for {
		changed := l.o.Changed()
		l.take(ctx, l.o.Remotes())
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
	}
}

// take starts workers for new servers, ends those of removed servers, and wakes those whose registrations changed.
func (l *Learner) take(ctx context.Context, remotes []Remote) {
	remotes = slices.Clone(remotes)
	slices.SortFunc(remotes, func(a, b Remote) int { return cmp.Compare(a.Name, b.Name) })
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remotes = remotes
	by := map[string][]Remote{}
	for _, r := range remotes {
		by[r.Server] = append(by[r.Server], r)
	}
	for name, s := range l.servers {
		if by[name] == nil {
			s.stop()
			delete(l.servers, name)
		}
	}
	for name, its := range by {
		s := l.servers[name]
		if s == nil {
			life, stop := context.WithCancel(ctx)
			s = &server{learner: l, name: name, stop: stop, versions: map[schema.GroupVersion]version{},
				wake: [2]chan struct{}{make(chan struct{}, 1), make(chan struct{}, 1)}}
			s.remotes = its
			l.servers[name] = s
			l.workers.Go(func() { s.work(life, s.wake[0], s.discover, firstDiscoveryPause, longestDiscoveryPause) })
			l.workers.Go(func() { s.work(life, s.wake[1], s.describe, firstOpenAPIPause, longestOpenAPIPause) })
			continue
		}
		news := !slices.EqualFunc(s.remotes, its, func(a, b Remote) bool { return a.Name == b.Name && a.State == b.State })
		s.remotes = its
		if news {
			s.poke()
		}
	}
	l.publish()
}

func (s *server) poke() {
	for _, c := range s.wake {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// errUnavailable is the error of a server that is not asked.
var errUnavailable = errors.New("none of its APIServices is available")

// askable returns the server's available group versions, sorted by name.
func (s *server) askable() ([]Remote, error) {
	out := slices.DeleteFunc(slices.Clone(s.asked()), func(r Remote) bool { return r.Unavailable })
	if len(out) == 0 {
		return nil, errUnavailable
	}
	return out, nil
}

// asked returns the server's group versions, sorted by name; none: it was removed.
func (s *server) asked() []Remote {
	s.learner.mu.Lock()
	defer s.learner.mu.Unlock()
	return s.remotes
}

// work calls do repeatedly. A wake-up resets the pauses.
func (s *server) work(ctx context.Context, wake <-chan struct{}, do func(context.Context) error, first, longest time.Duration) {
	pause := time.Duration(0)
	said := "" // the previous error: each is logged once
	for {
		err := do(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errUnavailable): // the registration shows this; when it changes, the server is asked immediately
			pause = 0
		case err == nil:
			if said != "" {
				s.learner.o.Log.InfoContext(ctx, "Discovery of an aggregated API server works again", "server", s.name, "apiservices", names(s.asked()))
			}
			pause, said = 0, ""
		default:
			pause = min(max(2*pause, first), longest)
			if said != err.Error() {
				s.learner.o.Log.WarnContext(ctx, "Could not discover the resources of an aggregated API server, keeping the previous ones",
					"server", s.name, "apiservices", names(s.asked()), "error", err)
			}
			said = err.Error()
		}
		t := s.learner.o.Clock.NewTimer(cmp.Or(pause, period))
		select {
		case <-ctx.Done():
		case <-wake:
			pause = 0
		case <-t.C():
		}
		t.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

func names(of []Remote) []string {
	out := make([]string, len(of))
	for i, r := range of {
		out[i] = r.Name
	}
	return out
}

// publish makes the current results visible to requests, if they have changed. The caller holds the lock.
func (l *Learner) publish() {
	if l.o.published != nil {
		defer l.o.published()
	}
	if len(l.remotes) == 0 {
		l.discovery.Store(nil)
		l.openapi.Store(nil)
		return
	}
	d, a := &discovery.Remote{}, &openapi.Remote{}
	for i := range l.remotes {
		r := &l.remotes[i]
		s := l.servers[r.Server]
		if s == nil {
			continue
		}
		v, known := s.versions[r.gv()]
		doc := v.document
		doc.Version, doc.Freshness = r.Version, apidiscoveryv2.DiscoveryFreshnessStale
		if known && v.current && !r.Unavailable {
			doc.Freshness = apidiscoveryv2.DiscoveryFreshnessCurrent
		}
		d.Versions = append(d.Versions, discovery.RemoteVersion{
			Group: r.Group, Version: r.Version, GroupPriority: r.GroupPriority, VersionPriority: r.VersionPriority, Document: doc,
		})
		s.api.add(a, r)
	}
	a.Order()
	if was := l.discovery.Load(); was == nil || !reflect.DeepEqual(was, d) {
		l.discovery.Store(d)
	}
	if was := l.openapi.Load(); was == nil || !was.Equal(a) {
		l.openapi.Store(a)
	}
}

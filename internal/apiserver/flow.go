// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"fmt"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
	"github.com/mortise-dev/mortise/internal/apiserver/flowcontrol"
	"github.com/mortise-dev/mortise/internal/apiserver/lasting"
	"github.com/mortise-dev/mortise/internal/apiserver/requestinfo"
)

// FlowControl limits concurrent requests. The zero value has kube-apiserver's defaults.
type FlowControl struct {
	// MaxReads and MaxWrites are the maximum numbers of requests in flight. Their sum is the number of seats that
	// priority levels share. Nil: 400 and 200; 0: no bound.
	MaxReads, MaxWrites *int
	// Plain applies the two bounds only, without priorities.
	Plain bool
	// RequestTimeout is the maximum time of a request that is not long-running; 0: a minute.
	RequestTimeout time.Duration
	// Bounds prevent clients from exhausting the server's memory.
	Bounds Bounds
}

func (o *FlowControl) reads() int64  { return int64(ptr.Deref(o.MaxReads, 400)) }
func (o *FlowControl) writes() int64 { return int64(ptr.Deref(o.MaxWrites, 200)) }

// newFlow makes the flow controller or the limiter.
func (s *Server) newFlow() error {
	o := &s.opts.FlowControl
	if o.RequestTimeout == 0 {
		o.RequestTimeout = time.Minute
	}
	s.limiter.MaxReads, s.limiter.MaxWrites = o.reads(), o.writes()
	s.bounds = newBounds(&o.Bounds)
	if o.Plain {
		return nil
	}
	s.turns = newTurns()
	seats := int(o.reads() + o.writes())
	if seats <= 0 {
		return fmt.Errorf("flow control: %d concurrent requests leave no seats for priority levels", seats)
	}
	s.flow = flowcontrol.New(flowcontrol.Options{Seats: seats, Wait: o.RequestTimeout / 4, Stored: s.stored})
	return s.metrics.Registry().Register(s.flow)
}

// sample is the number of objects of a kind that are read to estimate their size.
const sample = 8

// stored returns the number of objects of a resource and their estimated size.
func (s *Server) stored(r schema.GroupResource) (count, size int64, ok bool) {
	k := s.registry.Kinds().Get(r)
	if k == nil || k.Root == "" {
		return 0, 0, false
	}
	count, size, err := s.registry.Reader().Count(s.lifetime.Context, k, sample)
	return count, size, err == nil
}

// flowControl applies flow control to requests. Streams are long-running and take no seats. Watches take one until they
// have begun.
func flowControl(s *Server, w http.ResponseWriter, r *http.Request, next http.Handler) {
	info, _ := request.RequestInfoFrom(r.Context())
	who, _ := request.UserFrom(r.Context())
	watch := info.Verb == "watch"
	if long := longRunning(info); watch || long {
		leave, ok := s.bounds.lasting(who, weight(r))
		if !ok {
			s.tooMany(w, r, info, 1)
			return
		}
		defer lasting.After(w, leave)
		if long && !watch {
			next.ServeHTTP(w, r)
			return
		}
	}
	if !watch {
		if !s.underway.enter() {
			if late(r.URL.Path) {
				next.ServeHTTP(w, r)
			} else {
				refuseLate(w, r)
			}
			return
		}
		defer s.underway.leave()
	}
	switch {
	case s.flow != nil:
		s.inTurn(w, r, info, who, next)
	case watch:
		next.ServeHTTP(w, r)
	case !s.limiter.Enter(r.Method, administrator(who), time.Now()):
		s.tooMany(w, r, info, 1)
	default:
		rec := recordOf(r.Context())
		rec.limited = true
		defer rec.leaveSeat()
		s.bounded(w, r, info, who, next)
	}
}

// bounded serves a request if there is memory for its body.
func (s *Server) bounded(w http.ResponseWriter, r *http.Request, info *requestinfo.Info, who user.Info, next http.Handler) {
	leave, ok := s.bounds.body(r, who)
	if !ok {
		s.tooMany(w, r, info, 1)
		return
	}
	if leave != nil {
		defer leave()
	}
	next.ServeHTTP(w, r)
}

// inTurn serves a request when its priority level has seats for it. A request that only computes also waits for a turn.
func (s *Server) inTurn(w http.ResponseWriter, r *http.Request, info *requestinfo.Info, who user.Info, next http.Handler) {
	ctx := r.Context()
	class := s.flow.Match(info, who)
	class.Tell(w.Header())
	rec := recordOf(ctx)
	rec.trace.Queued(class.Name, class.Level)
	work := s.flow.Estimate(r, info, class)
	var turns *flowcontrol.Turns // nil: it needs no turn
	elsewhere := s.others.serve(r.URL.Path)
	if who != nil && !class.Exempt() && !elsewhere {
		turns = s.turns.of(info.Verb, work.Seats() > 1, rec.inProcess)
	}
	if info.IsResourceRequest && info.Verb != "watch" && !rec.inProcess {
		s.turns.users.Note()
	}
	refuse := func() { s.tooMany(w, r, info, s.flow.RetryAfter(class)) }
	var release func()
	if turns != nil {
		// no seats are held while waiting for a turn, so that one user's requests do not take all seats of a level
		if rec.turn = turns.Take(ctx, who.GetName(), s.flow.Wait(ctx, rec.begun)); rec.turn == nil {
			s.flow.Refuse(class)
			refuse()
			return
		}
		defer rec.turn.End()
		release = rec.turn.End
	}
	ticket := s.queued(ctx, class, work, who, release)
	if ticket == nil {
		refuse()
		return
	}
	if info.Verb != "watch" && !elsewhere {
		rec.ticket = ticket
		defer rec.leaveSeat()
		if turns != nil {
			rec.turn.Yield(ctx) // takes the turn again if it was given up meanwhile
		}
		s.bounded(w, r, info, who, next)
		return
	}
	leave := sync.OnceFunc(ticket.Leave)
	defer lasting.After(w, leave)
	if info.Verb == "watch" {
		defer lasting.After(w, s.flow.Watching(r, info))
	}
	next.ServeHTTP(w, r.WithContext(flowcontrol.WithBeginning(ctx, leave)))
}

// turns share the processors. The turns of reads leave one processor free for other requests, including writes, which
// mostly wait for the disk. The server's own components have separate turns for writes: they are few and limit their
// requests themselves. While users send requests, components leave a processor free for them too: a scheduler that binds
// thousands of pods a second has dozens of requests ready to run whenever the disk has synced.
type turns struct {
	narrow, wide, writes, own *flowcontrol.Turns

	users *flowcontrol.Users
}

func newTurns() turns {
	n := min(runtime.NumCPU(), runtime.GOMAXPROCS(0)) // GOMAXPROCS can exceed the number of processors
	users := &flowcontrol.Users{}
	return turns{
		narrow: flowcontrol.NewTurns(max(1, n-1)), wide: flowcontrol.NewLongTurns(max(1, n-1)), writes: flowcontrol.NewTurns(4 * n),
		own: flowcontrol.NewBackgroundTurns(32*n, max(1, n-1), users), users: users,
	}
}

func (t *turns) of(verb string, wide, within bool) *flowcontrol.Turns {
	switch verb {
	case "get", "list":
		if wide {
			return t.wide
		}
		return t.narrow
	case "create", "update", "patch", "delete":
		if within {
			return t.own
		}
		return t.writes
	}
	return nil
}

// tooMany rejects a request with a 429.
func (s *Server) tooMany(w http.ResponseWriter, r *http.Request, info *requestinfo.Info, after int64) {
	s.metrics.Dropped(droppedLabel(s.registry.Kinds(), info, r))
	w.Header().Set("Retry-After", strconv.FormatInt(after, 10))
	http.Error(w, "Too many requests, please try again later.", http.StatusTooManyRequests) // upstream's words
}

// longRunning reports whether a request is long-running; watches do not count.
func longRunning(info *requestinfo.Info) bool {
	switch info.Subresource {
	case "log", "exec", "attach", "portforward", "proxy":
		return true
	}
	return info.Verb == "proxy" || !info.IsResourceRequest && (strings.HasPrefix(info.Path, "/debug/pprof/") || info.Path == backupPath)
}

func administrator(who user.Info) bool {
	if who == nil {
		return false
	}
	for _, g := range who.GetGroups() {
		if g == authorize.Masters {
			return true
		}
	}
	return false
}

// inflight returns the maximum number of concurrent requests in the last second.
func (s *Server) inflight() (reads, writes int64) {
	if s.flow != nil {
		return s.flow.Peaks(time.Now())
	}
	return s.limiter.Peaks(time.Now())
}

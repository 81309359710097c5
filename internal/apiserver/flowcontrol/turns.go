// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Turns share the processors among users. There are many more seats than processors, since most requests with a seat wait
// for a disk or a client; requests that only compute, such as reads, would displace all others from the processors long
// before seats run out. So only some of them run concurrently, and the first waiting request of each user gets the next
// turn.
//
// A request that has a turn yields it regularly ([Turn.Yield]), and takes the next one. If it keeps the turn too long,
// because its client is slow to read, Turns takes the turn away, so that slow clients do not delay others; a slow client is
// exempt from then on.
type Turns struct {
	n    int    // maximum of concurrent turns
	long bool   // requests compute for milliseconds
	fore *Users // who go first; nil: there are none
	few  int    // maximum of concurrent turns while they are there

	mu      sync.Mutex
	holders []*Turn
	users   map[string][]*Turn // waiting turns by user, in order of arrival
	ring    []string           // users with waiting turns, the next user first
	watched bool               // a goroutine watches the holders
}

// tooLong is how long a request may compute, or a client may take to read a part of a response, before it is considered
// slow.
const tooLong = 20 * time.Millisecond

// blocked is the duration of a write from which on it very likely waited for the client to read. The network poller
// then woke the goroutine.
const blocked = 100 * time.Microsecond

// maxTurns is how many requests of one user may wait for a turn: about as many as a flow's queues hold by default, plus
// the seats of a level.
const maxTurns = 600

// NewTurns makes n turns.
func NewTurns(n int) *Turns { return &Turns{n: n, users: map[string][]*Turn{}} }

// NewLongTurns makes n turns for requests that compute for milliseconds, such as lists.
func NewLongTurns(n int) *Turns {
	s := NewTurns(n)
	s.long = true
	return s
}

// NewBackgroundTurns makes n turns, and few while users are active, who are to find a free processor.
func NewBackgroundTurns(n, few int, fore *Users) *Turns {
	s := NewTurns(n)
	s.few, s.fore = few, fore
	return s
}

// most is the maximum of concurrent turns now.
func (s *Turns) most() int {
	if s.fore != nil && s.fore.Active() {
		return s.few
	}
	return s.n
}

// lingers is how long users are considered active after a request.
const lingers = 100 * time.Millisecond

// Users knows whether users send requests. The zero value is ready.
type Users struct{ last atomic.Int64 }

// Note notes a request.
func (u *Users) Note() { u.last.Store(time.Now().UnixNano()) }

// Active reports whether there was a request a moment ago.
func (u *Users) Active() bool { return time.Now().UnixNano()-u.last.Load() < int64(lingers) }

// Turn is the turn of one request.
type Turn struct {
	of      *Turns
	user    string
	since   time.Time
	held    bool
	writing bool          // waiting for the client
	slow    bool          // the client was too slow
	granted chan struct{} // receives when the turn is granted
}

// Take waits for a turn, for wait at most. It returns nil if no turn was granted, or if too many of the user's requests
// wait already.
func (s *Turns) Take(ctx context.Context, user string, wait time.Duration) *Turn {
	t := &Turn{of: s, user: user}
	s.mu.Lock()
	if len(s.users[user]) >= maxTurns {
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	if !t.take(ctx, wait, false) {
		return nil
	}
	if s.long {
		attend()
	}
	return t
}

// attend makes another thread poll the network while this one computes. A thread that the poller woke runs the
// goroutine that became ready. If that makes no other goroutine ready, no thread polls until 10 ms have passed (the
// runtime's sysmon), so a request that arrives meanwhile waits although a processor is free. Starting a goroutine wakes
// a thread, which polls afterwards.
func attend() { go func() {}() }

// take waits for a turn. A new request queues behind the user's others; one that has begun goes first, so that it can
// end.
func (t *Turn) take(ctx context.Context, wait time.Duration, first bool) bool {
	s := t.of
	s.mu.Lock()
	if len(s.holders) < s.most() && len(s.ring) == 0 {
		s.grant(t)
		s.mu.Unlock()
		return true
	}
	if t.granted == nil {
		t.granted = make(chan struct{}, 1)
	}
	if len(s.users[t.user]) == 0 {
		s.ring = append(s.ring, t.user)
	}
	at := len(s.users[t.user])
	if first {
		at = 0
	}
	s.users[t.user] = slices.Insert(s.users[t.user], at, t)
	s.next()
	s.watch()
	s.mu.Unlock()
	var late <-chan time.Time
	if wait > 0 {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-t.granted:
		return true
	case <-ctx.Done():
	case <-late:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if t.held {
		<-t.granted // granted just now
		s.end(t)
		return false
	}
	s.leave(t)
	return false
}

// Writing marks the turn as waiting for the client from now on.
func (t *Turn) Writing() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	t.writing, t.since = true, time.Now()
}

// Yield lets waiting requests run, and returns with the next turn. If the client is slow, it returns without one.
func (t *Turn) Yield(ctx context.Context) {
	s := t.of
	now := time.Now()
	s.mu.Lock()
	if s.long && t.writing && now.Sub(t.since) > blocked {
		attend()
	}
	t.writing, t.since = false, now
	if t.slow || t.held && len(s.ring) == 0 {
		s.mu.Unlock()
		return
	}
	held := t.held
	if held && len(s.ring) == 1 && s.ring[0] == t.user {
		s.mu.Unlock()
		return // only requests of the same user wait, and they come later
	}
	if held {
		t.held = false
		s.holders = slices.DeleteFunc(s.holders, func(h *Turn) bool { return h == t })
	}
	s.mu.Unlock()
	t.take(ctx, 0, true)
}

type turnKey struct{}

// TurnKey is the key of a request's [Turn] in its context, for [Away].
var TurnKey any = turnKey{}

// Away gives up the turn of ctx's request, if it is one of the background, while the request waits for the disk. What it returns waits for
// the next turn.
//
// Without it, requests that wait for the disk would keep others from the processors, or there would have to be as many turns as requests
// that share one sync of the disk. These all become ready at once when it is done, and then others would wait for all of them.
func Away(ctx context.Context) (back func()) {
	t, _ := ctx.Value(TurnKey).(*Turn)
	if t == nil || t.of.fore == nil {
		return func() {}
	}
	t.End()
	return func() { t.again(ctx) }
}

// again takes the next turn.
func (t *Turn) again(ctx context.Context) {
	t.of.mu.Lock()
	has := t.held || t.slow
	t.of.mu.Unlock()
	if !has {
		t.take(ctx, 0, true)
	}
}

// End releases the turn.
func (t *Turn) End() {
	t.of.mu.Lock()
	defer t.of.mu.Unlock()
	if t.held {
		t.of.end(t)
	}
}

// The caller of the following functions holds the lock.

func (s *Turns) grant(t *Turn) {
	t.held, t.since = true, time.Now()
	s.holders = append(s.holders, t)
}

func (s *Turns) end(t *Turn) {
	t.held = false
	s.holders = slices.DeleteFunc(s.holders, func(h *Turn) bool { return h == t })
	s.next()
}

// next grants free turns to waiting requests, round robin by user.
func (s *Turns) next() {
	for len(s.holders) < s.most() && len(s.ring) > 0 {
		t := s.users[s.ring[0]][0]
		s.leave(t)
		if len(s.users[t.user]) > 0 { // the user's other requests come after those of all other users
			i := slices.Index(s.ring, t.user)
			s.ring = append(slices.Delete(s.ring, i, i+1), t.user)
		}
		s.grant(t)
		t.granted <- struct{}{}
	}
}

// leave removes a waiting turn.
func (s *Turns) leave(t *Turn) {
	all := s.users[t.user]
	if i := slices.Index(all, t); i >= 0 {
		all = slices.Delete(all, i, i+1)
	}
	if s.users[t.user] = all; len(all) == 0 {
		delete(s.users, t.user)
		i := slices.Index(s.ring, t.user)
		s.ring = slices.Delete(s.ring, i, i+1)
	}
}

// watch takes turns from slow holders as long as requests wait.
func (s *Turns) watch() {
	if s.watched {
		return
	}
	s.watched = true
	time.AfterFunc(tooLong, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.watched = false
		if len(s.ring) == 0 {
			return
		}
		now := time.Now()
		for _, t := range slices.Clone(s.holders) {
			if now.Sub(t.since) >= tooLong {
				t.slow = t.writing
				s.end(t)
			}
		}
		if len(s.ring) > 0 {
			s.watch()
		}
	})
}

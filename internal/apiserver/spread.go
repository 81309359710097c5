// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"
)

// Spread sends a share of the clients that are connected by HTTP/2 away to other servers. The zero value is useful; it is safe for
// concurrent use.
type Spread struct {
	now     atomic.Pointer[round]
	servers atomic.Int64
}

// Servers tells how many servers the cluster has, this one among them. Those that are new get their share of the clients.
func (s *Spread) Servers(n int) {
	if before := s.servers.Swap(int64(n)); before > 0 && int64(n) > before {
		s.Away(float64(int64(n)-before) / float64(n))
	}
}

// leaveWait is how long a server that stops serves requests that arrive on connections, while it tells their clients to go to others.
const leaveWait = 250 * time.Millisecond

// leave waits until clients have been told to go to other servers, if there are any.
func (s *Spread) leave() {
	if s == nil || s.servers.Load() < 2 {
		return
	}
	told := time.NewTimer(leaveWait)
	defer told.Stop()
	<-told.C
}

// round is one call of Away, identified by its address.
type round struct{ share float64 }

// Away ends each HTTP/2 connection that is open now with a probability, share, from 0 to 1: at its next request, by GOAWAY. The client
// connects again, and may reach another server; requests and watches in progress go on over the former connection until they end.
func (s *Spread) Away(share float64) { s.now.Store(&round{share}) }

// drawn is the last round in which a connection was drawn, or that it began after.
type drawn struct{ last atomic.Pointer[round] }

type drawnKey struct{}

// begin returns the context of all requests of a new connection; nil leaves it as it is.
func (s *Spread) begin(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	d := &drawn{}
	d.last.Store(s.now.Load())
	return context.WithValue(ctx, drawnKey{}, d)
}

// handler draws which connections end.
func (s *Spread) handler(next http.Handler) http.Handler {
	if s == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if now := s.now.Load(); now != nil && r.ProtoMajor == 2 {
			d, ok := r.Context().Value(drawnKey{}).(*drawn)
			if ok && d.last.Load() != now && d.last.Swap(now) != now && rand.Float64() < now.share {
				w.Header().Set("Connection", "close") // net/http sends GOAWAY
			}
		}
		next.ServeHTTP(w, r)
	})
}

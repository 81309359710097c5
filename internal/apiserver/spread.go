// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"
)

// Spread sends the clients that are connected by HTTP/2 away, so that they choose a server anew. The zero value is useful; it is safe for
// concurrent use.
type Spread struct {
	round   atomic.Int64 // how often they were sent away
	servers atomic.Int64
}

// Servers tells how many servers the cluster has, this one among them. When there are more than before, the clients choose anew: each of
// them at random, so that the new server gets its share only if all do.
func (s *Spread) Servers(n int) {
	if before := s.servers.Swap(int64(n)); before > 0 && int64(n) > before {
		s.Away()
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

// Away ends each HTTP/2 connection that is open now, at its next request, by GOAWAY. Requests and watches in progress go on over it until
// they end, while the client connects again.
func (s *Spread) Away() { s.round.Add(1) }

// roundKey is the key of the last round that a connection knows, in the context of its requests.
type roundKey struct{}

// begin returns the context of all requests of a new connection; nil leaves it as it is.
func (s *Spread) begin(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	var knows atomic.Int64
	knows.Store(s.round.Load())
	return context.WithValue(ctx, roundKey{}, &knows)
}

// handler sends GOAWAY on the connections that are to end.
func (s *Spread) handler(next http.Handler) http.Handler {
	if s == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if now := s.round.Load(); now > 0 && r.ProtoMajor == 2 {
			knows, ok := r.Context().Value(roundKey{}).(*atomic.Int64)
			if ok && knows.Load() != now && knows.Swap(now) != now {
				w.Header().Set("Connection", "close") // net/http sends GOAWAY
			}
		}
		next.ServeHTTP(w, r)
	})
}

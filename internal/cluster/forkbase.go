// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/serving"
	"github.com/mortise-dev/mortise/store"
)

// base is a state of a store at which forks begin. It has an API server for all of them, which accepts their connections, and answers what
// they read until something may happen in a fork: until then all forks of the base are alike. It starts with the first connection, and
// writes nothing. So the first answer of a fork does not wait for a start, except that of the first fork.
//
// From then on it passes the fork's requests on to the fork's own API server.
type base struct {
	of       store.Engine // whose state it is; nil: an older one
	revision int64
	engine   store.Engine // only expiries change it
	settings Settings
	material *serving.Material

	forks sync.Map // *Cluster by the address of its listener

	mu     sync.Mutex
	users  int
	reader *reader // nil: no fork has a connection yet
	failed error   // why the reader could not start
}

// reader is the API server of a base.
type reader struct {
	*instance
	connections *handed
}

// newBase returns a base with one user.
func newBase(engine store.Engine, s Settings, material *serving.Material) *base {
	s.Start.Progress, s.Extensions.Admission = nil, nil // it admits nothing
	s.local, s.Start.label = s.local.fork(), newLabel()
	return &base{revision: engine.Revision(), engine: engine, settings: s, material: material, users: 1}
}

// leave ends a use. The last one stops the reader.
func (b *base) leave() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.users--; b.users > 0 {
		return nil
	}
	var err error
	if b.reader != nil {
		err = b.reader.Stop()
		b.settings.local.close()
	}
	if closed := b.engine.Close(); !errors.Is(closed, store.ErrClosed) { // as the reader has done
		err = errors.Join(err, closed)
	}
	return err
}

// read returns the reader, and starts it unless it runs.
func (b *base) read() (*reader, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.reader != nil || b.failed != nil {
		return b.reader, b.failed
	}
	s, h := b.settings, newHanded(nowhere)
	s.origin = &origin{engine: b.engine, material: b.material, listener: h, base: b}
	running, _, err := startSteps(context.Background(), s, readerSteps())
	if err != nil {
		b.failed = fmt.Errorf("start API server of forks: %w", err)
		return nil, b.failed
	}
	b.reader = &reader{running, h}
	return b.reader, nil
}

// front returns the handler of the connections of the forks. Api is the handler of server, the base's own.
func (b *base) front(server *apiserver.Server, api http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at, _ := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
		found, ok := b.forks.Load(at.String())
		if !ok {
			panic(http.ErrAbortHandler) // it has just stopped
		}
		f := found.(*Cluster)
		if f.untouched() && apiserver.Reads(server, r) {
			f.begin()
			api.ServeHTTP(w, r)
			return
		}
		own, err := f.use()
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		own.front.ServeHTTP(w, r)
	})
}

// bases has the newest base of a cluster's forks: those of the same revision share it. The zero value has none.
type bases struct {
	mu     sync.Mutex
	newest *base
}

// newestOf returns the base of the newest state of a cluster's store, with a use for the caller.
func (bs *bases) newestOf(from store.Forker, c *Cluster) (*base, error) {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	of := from.(store.Engine) // as Cluster.stored returns it
	if b := bs.newest; b != nil && b.of == of && b.revision == of.Revision() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.users++
		return b, nil
	}
	engine, err := from.Fork()
	if err != nil {
		return nil, err
	}
	old := bs.newest
	bs.newest = newBase(engine, c.settings, c.material)
	bs.newest.of, bs.newest.users = of, 2
	if old != nil {
		err = old.leave()
	}
	return bs.newest, err
}

// close ends the use of the newest base.
func (bs *bases) close() error {
	bs.mu.Lock()
	defer bs.mu.Unlock()
	b := bs.newest
	bs.newest = nil
	if b == nil {
		return nil
	}
	return b.leave()
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"testing"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/etcd"
	"github.com/mortise-dev/mortise/store/storetest"
)

var _ = storetest.Seed()

// empties hands out empty clusters. It starts the next one while a test uses the last, since every test needs a store at revision 1.
type empties struct{ next *members }

func (e *empties) take(tb testing.TB) *members {
	if e.next == nil {
		e.next = launch(tb, 3)
	}
	c := e.next
	e.next = launch(tb, 3)
	return c.ready(tb)
}

func (e *empties) close() {
	if e.next != nil {
		e.next.remove()
	}
}

func open(tb testing.TB, c *members) *etcd.Engine {
	tb.Helper()
	engine, err := etcd.Open(context.Background(), etcd.Options{Servers: c.urls})
	must(tb, err)
	return engine
}

// TestEngine: the engine keeps the store's promises on three members.
func TestEngine(t *testing.T) {
	var all empties
	defer all.close()
	storetest.Run(t, func(tb testing.TB, clock alarm.Clock) storetest.Open {
		c := all.take(tb)
		tb.Cleanup(c.remove)
		return func() (store.Engine, error) {
			return etcd.Open(context.Background(), etcd.Options{Servers: c.urls, Clock: clock})
		}
	}, storetest.Features{Durable: true, Checks: 5})
}

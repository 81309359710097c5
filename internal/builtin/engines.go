// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"cmp"
	"context"
	"log/slog"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/etcd"
	"github.com/mortise-dev/mortise/store/local"
	"github.com/mortise-dev/mortise/store/memory"
)

// Engine describes a store engine.
type Engine struct {
	// Name selects it: the value of --store.
	Name string
	// Usage says in the help of --store what the engine does: "keeps objects on disk".
	Usage string
	// InDataDir is true of an engine that keeps its data in the data directory, and cannot do without one.
	InDataDir bool
	// Lasting is true of an engine whose data outlives the process.
	Lasting bool
	// Shared is true of an engine whose data other servers use at the same time, and which is set up by more than a directory.
	Shared bool
	// Check refuses settings with which the engine cannot be opened; nil: there are none.
	Check func(o EngineOptions) error
	Open  func(ctx context.Context, o EngineOptions) (store.Engine, error)
}

// EngineOptions are what an engine is opened with.
type EngineOptions struct {
	// Dir is the engine's own directory inside the data directory; empty without a data directory.
	Dir string
	// Etcd says where the engine etcd finds its cluster.
	Etcd options.Etcd
	// Logger logs background work; nil: none.
	Logger *slog.Logger
}

// Engines are the store engines, the most usual first: with a data directory the first one that lasts is the default, without one the
// first that does not.
func Engines() []Engine {
	return []Engine{
		{Name: "local", Usage: "keeps objects on disk", InDataDir: true, Lasting: true, Open: openLocal},
		{
			Name: "etcd", Usage: "keeps them in an etcd cluster", Lasting: true, Shared: true, Open: openEtcd,
			Check: func(o EngineOptions) error { return etcd.CheckServers(o.Etcd.Servers) },
		},
		{Name: "memory", Usage: "loses them when the process ends", Open: openMemory},
	}
}

func openLocal(_ context.Context, o EngineOptions) (store.Engine, error) {
	e, err := local.Open(o.Dir, local.Options{})
	if err != nil {
		return nil, err
	}
	return e, nil
}

func openEtcd(ctx context.Context, o EngineOptions) (store.Engine, error) {
	config, err := etcd.LoadTLS(o.Etcd.CAFile, o.Etcd.CertFile, o.Etcd.KeyFile)
	if err != nil {
		return nil, err
	}
	e, err := etcd.Open(ctx, etcd.Options{
		Servers: o.Etcd.Servers, TLS: config, Prefix: cmp.Or(o.Etcd.Prefix, etcd.DefaultPrefix), Logger: o.Logger,
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

func openMemory(context.Context, EngineOptions) (store.Engine, error) {
	return memory.Open(memory.Options{}), nil
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"context"

	"github.com/mortise-dev/mortise/store"
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
	Open    func(ctx context.Context, o EngineOptions) (store.Engine, error)
}

// EngineOptions are what an engine is opened with.
type EngineOptions struct {
	// Dir is the engine's own directory inside the data directory; empty without a data directory.
	Dir string
}

// Engines are the store engines, the most usual first: with a data directory the first one that lasts is the default, without one the
// first that does not.
func Engines() []Engine {
	return []Engine{
		{Name: "local", Usage: "keeps objects on disk", InDataDir: true, Lasting: true, Open: openLocal},
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

func openMemory(context.Context, EngineOptions) (store.Engine, error) {
	return memory.Open(memory.Options{}), nil
}

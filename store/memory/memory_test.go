// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"testing"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/memory"
	"github.com/mortise-dev/mortise/store/storetest"
)

var _ = storetest.Seed()

func factory(_ testing.TB, clock alarm.Clock) storetest.Open {
	return func() (store.Engine, error) { return memory.Open(memory.Options{Clock: clock}), nil }
}

func TestEngine(t *testing.T) { storetest.Run(t, factory, storetest.Features{Clock: true}) }

func BenchmarkEngine(b *testing.B) { storetest.Bench(b, factory) }

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package local_test

import (
	"testing"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/alarm"
	"github.com/mortise-dev/mortise/store/local"
	"github.com/mortise-dev/mortise/store/local/disk"
	"github.com/mortise-dev/mortise/store/storetest"
)

var _ = storetest.Seed()

func onDisk(tb testing.TB, clock alarm.Clock) storetest.Open {
	dir := tb.TempDir()
	return func() (store.Engine, error) { return local.Open(dir, local.Options{Clock: clock}) }
}

// small has segments so short that there are many, on a disk in memory.
func small(_ testing.TB, clock alarm.Clock) storetest.Open {
	fs := disk.NewMem()
	return func() (store.Engine, error) {
		return local.Open("data", local.Options{Clock: clock, Disk: fs, SegmentBytes: 1 << 10})
	}
}

func TestEngine(t *testing.T) {
	storetest.Run(t, onDisk, storetest.Features{Durable: true, Clock: true, Checks: 10}) // the disk is slow, see below
}

func TestEngineSmallSegments(t *testing.T) {
	storetest.Run(t, small, storetest.Features{Durable: true, Clock: true})
}

// BenchmarkEngine holds, as Commit/writers=256, the budget of the engine alone.
func BenchmarkEngine(b *testing.B) { storetest.Bench(b, onDisk) }

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package apiserver

import (
	"sync"
	"sync/atomic"
	"testing"

	"github.com/mortise-dev/mortise/resource"
)

// TestRecords has many writers increase one record that is not an object: each sees the last value.
func TestRecords(t *testing.T) {
	f := start(t)
	k, ok := f.Backend().(resource.RecordStore)
	if !ok {
		t.Fatal("the server keeps no records")
	}
	ctx := t.Context()
	if value, revision, err := k.Record(ctx, "ranges/x"); value != nil || revision != 0 || err != nil {
		t.Fatalf("a record that is not there: %q at %d, %v", value, revision, err)
	}
	var lost atomic.Int32
	var all sync.WaitGroup
	for range 16 {
		all.Go(func() {
			for {
				value, revision, err := k.Record(ctx, "ranges/x")
				if err != nil {
					t.Error(err)
					return
				}
				done, err := k.SetRecord(ctx, "ranges/x", append([]byte("+"), value...), revision)
				if err != nil {
					t.Error(err)
					return
				}
				if done {
					return
				}
				lost.Add(1)
			}
		})
	}
	all.Wait()
	value, revision, err := k.Record(ctx, "ranges/x")
	if err != nil || len(value) != 16 {
		t.Errorf("%d of 16 writes are there (%d were tried again), %v", len(value), lost.Load(), err)
	}
	if done, err := k.SetRecord(ctx, "ranges/x", nil, revision-1); done || err != nil {
		t.Errorf("a write over another revision: %v, %v", done, err)
	}
	if done, err := k.SetRecord(ctx, "ranges/x", nil, 0); done || err != nil {
		t.Errorf("a second creation: %v, %v", done, err)
	}
}

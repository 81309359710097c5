// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/faulty"
	"github.com/mortise-dev/mortise/store/local"
	"github.com/mortise-dev/mortise/store/memory"
	"github.com/mortise-dev/mortise/store/metered"
)

// TestAbilities finds the optional interfaces of an engine through two decorators, and does without where there are none.
func TestAbilities(t *testing.T) {
	ctx := context.Background()
	engine, err := local.Open(t.TempDir(), local.Options{})
	if err != nil {
		t.Fatal(err)
	}
	none := func(faulty.Call) faulty.Fault { return faulty.Fault{} }
	s := store.New(metered.New(faulty.New(engine, none), nil))
	if _, err := s.Create(ctx, "/a", []byte("1"), 0); err != nil {
		t.Fatal(err)
	}
	var backup bytes.Buffer
	if revision, err := s.Backup(ctx, &backup); err != nil || revision != 2 || backup.Len() == 0 {
		t.Errorf("backup: %d, %v", revision, err)
	}
	if err := s.Check(ctx); err != nil {
		t.Errorf("check: %v", err)
	}
	if size := s.Size(); size.Keys != 1 || size.Disk == 0 {
		t.Errorf("size: %+v", size)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}

	s = store.New(memory.Open(memory.Options{}))
	if err := s.Check(ctx); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("check in memory: %v", err)
	}
	if _, err := s.Backup(ctx, &backup); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("backup in memory: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// TestView attaches and detaches what the layer above wants to keep with a record.
func TestView(t *testing.T) {
	var r store.Record
	if r.View() != nil {
		t.Error("a view from nowhere")
	}
	if r.SetView("x"); r.View() != "x" {
		t.Error("the view is lost")
	}
	if r.SetView(nil); r.View() != nil {
		t.Error("the view stays")
	}
}

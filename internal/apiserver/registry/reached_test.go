// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"strings"
	"testing"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// behind is an engine that learns by reads what other servers have written.
type behind struct {
	store.Engine
	revision int64
}

func (e *behind) Revision() int64 { return e.revision }

func (e *behind) Get(ctx context.Context, key string) (*store.Record, int64, error) {
	r, revision, err := e.Engine.Get(ctx, key)
	e.revision = revision
	return r, revision, err
}

// TestReached: a revision of another server's is one that the store reaches by a read; one that no server has written is none.
func TestReached(t *testing.T) {
	e := &behind{Engine: memory.Open(memory.Options{})}
	s := store.New(e)
	defer s.Close()
	r, err := store.New(e.Engine).Create(t.Context(), "/registry/configmaps/ns/a", []byte("1"), 0)
	if err != nil {
		t.Fatal(err)
	}
	e.revision = r.Revision - 1
	rd, kind := &Reader{store: s}, &Kind{Root: "/registry/configmaps/"}
	if err := rd.reached(t.Context(), kind, r.Revision); err != nil {
		t.Errorf("another server's revision: %v", err)
	}
	if err := rd.reached(t.Context(), kind, r.Revision+1); err == nil || !strings.Contains(err.Error(), "Too large resource version") {
		t.Errorf("nobody's revision: %v", err)
	}
}

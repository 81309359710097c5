// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package memory_test

import (
	"context"
	"fmt"

	"github.com/mortise-dev/mortise/store"
	"github.com/mortise-dev/mortise/store/memory"
)

// A reader lists, then watches from the revision of the list, and misses nothing.
func Example() {
	ctx := context.Background()
	s := store.New(memory.Open(memory.Options{}))
	defer func() { _ = s.Close() }()

	r, err := s.Create(ctx, "/registry/pods/default/a", []byte("one"), 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	page, err := s.List(ctx, "/registry/pods/")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(page.Revision, len(page.Records))

	w, err := s.Watch(ctx, "/registry/pods/", page.Revision)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer w.Close()
	if _, err := s.Update(ctx, r.Key, r.Revision, []byte("two"), 0); err != nil {
		fmt.Println(err)
	}
	if _, err := s.Update(ctx, r.Key, r.Revision, []byte("three"), 0); err != nil {
		fmt.Println(err)
	}
	batch, err := w.Next(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, e := range batch.Events {
		fmt.Println(e.Revision, e.Key, string(e.Previous.Value), string(e.Record.Value))
	}
	// Output:
	// 2 1
	// key "/registry/pods/default/a": expected revision 2, is at 3
	// 3 /registry/pods/default/a one two
}

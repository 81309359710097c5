// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// snapshotPage is how many objects are read at once.
const snapshotPage = 1000

// Snapshot is the store at one revision.
type Snapshot struct {
	Revision int64

	feed   *Feed
	failed map[objectKey]*failure
}

// List calls f with each object of a resource, in the order of their namespaces and names. Objects are shared and read-only. A
// resource that the server does not have has no objects. Objects that cannot be decoded are left out; the feed tries them again
// and names them in [Feed.Check]. An error of f ends the list and is returned.
func (s *Snapshot) List(ctx context.Context, r schema.GroupResource, f func(obj resource.Object) error) error {
	k := s.feed.opts.Kind(r)
	if k == nil {
		return nil
	}
	for after := ""; ; {
		page, err := s.feed.opts.Source.Range(ctx, store.Range{Prefix: k.Root, After: after, Limit: snapshotPage, Revision: s.Revision})
		if err != nil {
			return fmt.Errorf("list %s: %w", r, err)
		}
		for _, record := range page.Records {
			forms, err := k.Forms(record)
			if err != nil {
				s.fail(k, record, err)
				continue
			}
			if err := f(forms.Hub); err != nil {
				return err
			}
		}
		if page.Remaining == 0 || len(page.Records) == 0 {
			return nil
		}
		after = page.Records[len(page.Records)-1].Key
	}
}

// fail keeps a record that cannot be decoded.
func (s *Snapshot) fail(k *watchcache.Kind, record *store.Record, err error) {
	c := changeAt(k, record.Key, record.Revision)
	if s.failed == nil {
		s.failed = map[objectKey]*failure{}
	}
	s.failed[c.key()] = &failure{queued{c, record, err}, err}
}

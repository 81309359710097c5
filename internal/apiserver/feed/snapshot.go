// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package feed

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// snapshotPage is the number of objects in one read.
const snapshotPage = 1000

// Snapshot is the store at one revision.
type Snapshot struct {
	Revision int64

	feed   *Feed
	failed map[Key]*failure
}

// List implements [Lister]. Objects that cannot be decoded are left out; the feed tries them again and names them in [Feed.Check].
func (s *Snapshot) List(ctx context.Context, r schema.GroupResource, namespace string) ([]resource.Object, error) {
	k := s.feed.opts.Kind(r)
	if k == nil {
		return nil, nil
	}
	var objs []resource.Object
	for after := ""; ; {
		page, err := s.feed.opts.Source.Range(ctx, store.Range{Prefix: k.Under(namespace), After: after, Limit: snapshotPage,
			Revision: s.Revision})
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", r, err)
		}
		for _, record := range page.Records {
			cached, err := k.Cached(record)
			if err != nil {
				c := changeAt(k, record.Key, record.Revision)
				s.fail(queued{c, record, err}, err)
				continue
			}
			objs = append(objs, cached.Hub)
		}
		if page.Remaining == 0 || len(page.Records) == 0 {
			return objs, nil
		}
		after = page.Records[len(page.Records)-1].Key
	}
}

// Fail records that an object of the snapshot could not be applied: the feed applies it again, by [Follower.Apply], and
// names it in [Feed.Check] until that succeeds.
func (s *Snapshot) Fail(r schema.GroupResource, obj resource.Object, err error) {
	s.fail(queued{Change: &Change{Resource: r, Namespace: obj.GetNamespace(), Name: obj.GetName(), Revision: s.Revision, Object: obj}}, err)
}

// Has reports whether the snapshot has an object that List left out.
func (s *Snapshot) Has(r schema.GroupResource, namespace, name string) bool {
	return s != nil && s.failed[Key{r, namespace, name}] != nil
}

// Fail records that an object of a list could not be applied, as [Snapshot.Fail] does. It returns the error if the lister is no snapshot.
func Fail(l Lister, r schema.GroupResource, obj resource.Object, err error) error {
	s, ok := l.(*Snapshot)
	if ok && err != nil {
		s.Fail(r, obj, err)
		return nil
	}
	return err
}

func (s *Snapshot) fail(q queued, err error) {
	if s.failed == nil {
		s.failed = map[Key]*failure{}
	}
	s.failed[q.key()] = &failure{q, err, true}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/store"
)

// Watch finds the revision at which a watch starts, and the objects that it sends first; these are nil when there are none
// to send.
func (rd *Reader) Watch(ctx context.Context, k *Kind, namespace string, s *Selection) (*watchcache.Cursor, *Found, error) {
	want, err := ParseResourceVersion(s.ResourceVersion)
	if err != nil {
		return nil, nil, err
	}
	send := s.SendInitialEvents != nil && *s.SendInitialEvents
	silent := s.SendInitialEvents != nil && !*s.SendInitialEvents
	if want > 0 && !send {
		// A revision that the store has not reached may be one of another server: no event up to it is sent.
		c, err := k.Feed.Cursor(ctx, want)
		if errors.Is(err, store.ErrCompacted) {
			return nil, nil, rd.Expired(k, want)
		}
		return c, nil, err
	}
	if err := rd.reached(ctx, k, want); err != nil {
		return nil, nil, err
	}
	// the feed is started before the objects are read, so that nothing falls between the two
	if err := k.Feed.Start(); err != nil {
		return nil, nil, err
	}
	if silent {
		c, err := k.Feed.Cursor(ctx, rd.store.Revision())
		return c, nil, err
	}
	all := *s
	all.ResourceVersion, all.ResourceVersionMatch, all.Limit, all.Continue = "", "", 0, ""
	initial, err := rd.List(ctx, k, namespace, &all)
	if err != nil {
		return nil, nil, err
	}
	at, err := ParseResourceVersion(initial.Meta.ResourceVersion)
	if err != nil {
		return nil, nil, err
	}
	c, err := k.Feed.Cursor(ctx, at)
	return c, initial, err
}

// reached returns an error for a revision that the store has not reached. Another server may have told it to the client; a read brings the
// store up to what all servers have written.
func (rd *Reader) reached(ctx context.Context, k *Kind, want int64) error {
	if want <= rd.store.Revision() {
		return nil
	}
	_, newest, err := rd.store.Get(ctx, k.Root)
	if err == nil && want > newest {
		err = status.TooLarge(want, newest)
	}
	return err
}

// Expired is the 410 of a revision that is no longer known. Events have words of their own: upstream has no cache of them.
func (rd *Reader) Expired(k *Kind, want int64) error {
	if k.Resource == "events" {
		return status.Expired("")
	}
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", want, rd.store.Compacted()))
}

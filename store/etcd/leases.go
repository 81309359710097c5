// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/mortise-dev/mortise/store/alarm"
)

// A lease is shared by keys that expire within a twentieth of their time to live, at most sharedTime, and by at most sharedKeys of them, as
// in kube-apiserver.
const (
	sharedPart = 20
	sharedTime = time.Minute
	sharedKeys = 1000
)

// leases grants leases. For each time to live it keeps the last one, to share it.
type leases struct {
	grant func(ctx context.Context, seconds int64) (*clientv3.LeaseGrantResponse, error)
	clock alarm.Clock

	mu   sync.Mutex
	last map[int64]*lease // by seconds
}

type lease struct {
	id      clientv3.LeaseID
	granted time.Time
	expires time.Time
	keys    int
}

// get returns a lease that lives at least ttl, whole seconds, and at most a twentieth longer.
func (l *leases) get(ctx context.Context, ttl time.Duration) (clientv3.LeaseID, error) {
	seconds := int64((ttl + time.Second - 1) / time.Second)
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	if last := l.last[seconds]; last != nil && last.keys < sharedKeys && !now.Before(last.granted) && !now.Add(ttl).After(last.expires) {
		last.keys++
		return last.id, nil
	}
	longer := seconds + min(seconds/sharedPart, int64(sharedTime/time.Second))
	granted, err := l.grant(ctx, longer)
	if err != nil {
		return 0, fmt.Errorf("grant a lease of %d s: %w", longer, translate(err))
	}
	if l.last == nil {
		l.last = map[int64]*lease{}
	}
	for s, old := range l.last { // few times to live are in use
		if now.After(old.expires) || now.Before(old.granted) { // the clock has been set back
			delete(l.last, s)
		}
	}
	l.last[seconds] = &lease{id: granted.ID, granted: now, expires: now.Add(time.Duration(longer) * time.Second), keys: 1}
	return granted.ID, nil
}

// forget drops a lease that etcd does not know any more.
func (l *leases) forget() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last = nil
}

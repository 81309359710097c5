// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"errors"
	"sync"

	"github.com/mortise-dev/mortise/store"
)

// maxUnreadable bounds the records that a kind remembers as unreadable.
const maxUnreadable = 1000

// unreadables are records of a kind that could not be decoded. A list that is sent as it is made can so refuse before it has begun. The
// zero value is empty.
type unreadables struct {
	mu sync.Mutex
	by map[string]*store.UnreadableError // by key
}

// add remembers a record, and reports whether it is new.
func (u *unreadables) add(e *store.UnreadableError) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if old := u.by[e.Key]; old != nil && old.Revision == e.Revision {
		return false
	}
	if u.by == nil || len(u.by) >= maxUnreadable {
		u.by = map[string]*store.UnreadableError{}
	}
	u.by[e.Key] = e
	return true
}

// readable forgets a record that could be decoded after all: its key has come back.
func (u *unreadables) readable(r *store.Record) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.by, r.Key)
}

// among returns one of the records that is remembered, nil if there is none.
func (u *unreadables) among(records []*store.Record) *store.UnreadableError {
	u.mu.Lock()
	defer u.mu.Unlock()
	if len(u.by) == 0 {
		return nil
	}
	for _, r := range records {
		if e := u.by[r.Key]; e != nil && e.Revision == r.Revision {
			return e
		}
	}
	return nil
}

// Unreadable returns why one of some records cannot be decoded, if one is known that cannot; otherwise nil.
func (k *Kind) Unreadable(records []*store.Record) error {
	e := k.unreadable.among(records)
	if e == nil {
		return nil
	}
	for _, r := range records {
		if r.Key == e.Key {
			_, err := k.Cached(r) // keys of encrypted objects may have come back
			return err
		}
	}
	return nil
}

// verified is up to which revision the records of a kind's namespaces are readable; the namespace "" stands for all of them. The zero value
// knows of none.
type verified struct {
	mu sync.Mutex
	to map[string]int64
}

// maxVerified bounds the namespaces that a kind remembers.
const maxVerified = 1000

func (v *verified) upTo(namespace string) int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return max(v.to[""], v.to[namespace])
}

func (v *verified) set(namespace string, revision int64) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.to == nil || len(v.to) >= maxVerified {
		v.to = map[string]int64{"": v.to[""]}
	}
	v.to[namespace] = max(v.to[namespace], revision)
}

// Verify decodes the records of a kind's namespace, or of all, that others have written and that no earlier call has decoded. It returns
// the error of the first that cannot be. A list that is sent as it is made can so refuse before it has begun. The records are those of a
// revision; whole is true if there are no others.
func Verify(k *Kind, namespace string, records []*store.Record, revision int64, whole bool) error {
	from, to := k.verified.upTo(namespace), min(k.Foreign, revision)
	if from >= to {
		return nil
	}
	for _, r := range records {
		if r.Revision <= from || r.Revision > to || k.view(r) != nil {
			continue
		}
		if _, err := k.hub(r); err != nil {
			return err
		}
	}
	if whole {
		k.verified.set(namespace, to)
	}
	return nil
}

// sealed returns the error of a record that does not decrypt, and tells of it.
func (k *Kind) sealed(r *store.Record, err error) error {
	e := &store.UnreadableError{Key: r.Key, Revision: r.Revision, Sealed: true, Err: err}
	if known := (*store.UnreadableError)(nil); errors.As(err, &known) {
		e.Err = known.Err
	}
	return k.tell(e)
}

// broken returns the error of a record that cannot be decoded, and tells of it.
func (k *Kind) broken(r *store.Record, err error) error {
	e := &store.UnreadableError{Key: r.Key, Revision: r.Revision, Err: err}
	if r.Revision == 0 {
		return e // it is not stored
	}
	return k.tell(e)
}

func (k *Kind) tell(e *store.UnreadableError) error {
	if first := k.unreadable.add(e); k.Unread != nil {
		k.Unread(e, first)
	}
	return e
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package registry

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/store"
)

// Reader gets, lists and watches objects.
type Reader struct {
	store   *store.Store
	now     func() time.Time
	waiting *uninitialized // nil: no object waits for initializers
}

// Found is the result of a list. Records are decoded only if the selection needs it.
type Found struct {
	Records []*store.Record
	Meta    metav1.ListMeta
	// Revision is that of the list. Whole is true if all objects of the namespace, or of all, were selected.
	Revision int64
	Whole    bool
}

// Get reads the record of an object, nil if there is none, and the revision of which that is true.
func (rd *Reader) Get(ctx context.Context, k *Kind, namespace, name string) (*store.Record, int64, error) {
	return rd.store.Get(ctx, k.Key(namespace, name))
}

// Count counts the objects of a kind, and measures the first few: bytes is their mean size.
func (rd *Reader) Count(ctx context.Context, k *Kind, few int) (count, bytes int64, err error) {
	p, err := rd.store.Range(ctx, store.Range{Prefix: k.Root, Limit: few})
	if err != nil {
		return 0, 0, err
	}
	for _, rec := range p.Records {
		bytes += int64(len(rec.Value))
	}
	n := int64(len(p.Records))
	if n > 0 {
		bytes /= n
	}
	return n + p.Remaining, bytes, nil
}

// page is how many records are looked at in one read when a limited list selects only some.
const page = 500

// List reads the selected records of a kind from one revision.
//
// Which revision: the token's, when the list goes on; the named one, when resourceVersionMatch is Exact, or silent with a
// limit; else the newest, which is no older than anything a client can have seen.
func (rd *Reader) List(ctx context.Context, k *Kind, ns string, s *Selection) (*Found, error) {
	r := store.Range{Prefix: k.Under(ns)}
	limit := int(max(s.Limit, 0))
	if s.ResourceVersion == "0" {
		limit = 0 // what any revision may answer is answered whole
	}
	if s.Continue != "" {
		var err error
		if r.After, r.Revision, err = decodeContinue(s.Continue, r.Prefix); err != nil {
			return nil, err
		}
		if s.ResourceVersion != "" && s.ResourceVersion != "0" {
			return nil, apierrors.NewBadRequest("specifying resource version is not allowed when using continue")
		}
		r.Revision = max(r.Revision, 0)
	} else {
		want, err := ParseResourceVersion(s.ResourceVersion)
		if err != nil {
			return nil, apierrors.NewBadRequest("invalid resource version: " + err.Error())
		}
		one := s.Name != "" && (ns != "" || !k.Namespaced)
		switch {
		case want == 0:
		case s.ResourceVersionMatch == metav1.ResourceVersionMatchExact || s.ResourceVersionMatch == "" && limit > 0 && !one:
			r.Revision = want
		default:
			if err := rd.reached(ctx, k, want); err != nil {
				return nil, err
			}
		}
		if one && r.Revision == 0 {
			return rd.listOne(ctx, k, ns, s)
		}
	}
	l := &Found{}
	if s.All() && s.Name == "" {
		r.Limit = limit
	} else if limit > 0 {
		r.Limit = max(page, limit)
	}
	for {
		p, err := rd.store.Range(ctx, r)
		if err != nil {
			return nil, rd.listError(err, s, r)
		}
		l.Revision, l.Meta.ResourceVersion = p.Revision, strconv.FormatInt(p.Revision, 10)
		if s.Foresee != nil {
			if err := s.Foresee(p.Records); err != nil {
				return nil, err
			}
		}
		for i, rec := range p.Records {
			r.After = rec.Key
			ok, err := s.Picks(k, rec)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
			l.Records = append(l.Records, rec)
			if limit > 0 && len(l.Records) == limit {
				rest := int64(len(p.Records)-i-1) + p.Remaining
				if rest > 0 && s.Initialized && s.All() {
					if rest, err = rd.initialized(ctx, k, store.Range{Prefix: r.Prefix, After: rec.Key, Revision: p.Revision}, rest); err != nil {
						return nil, rd.listError(err, s, r)
					}
				}
				if rest > 0 {
					l.Meta.Continue = encodeContinue("/"+strings.TrimPrefix(rec.Key, r.Prefix)+"\x00", p.Revision)
					if s.All() {
						l.Meta.RemainingItemCount = &rest
					}
				}
				return l, nil
			}
		}
		if p.Remaining == 0 {
			l.Whole = s.All() && s.Name == "" && s.Continue == ""
			return l, nil
		}
		r.Revision = p.Revision
	}
}

// Unreadable returns the objects of a namespace, or of all, that cannot be decoded now, at most limit.
func (rd *Reader) Unreadable(ctx context.Context, k *Kind, ns string, limit int) (all []*store.UnreadableError, err error) {
	p, err := rd.store.Range(ctx, store.Range{Prefix: k.Under(ns)})
	if err != nil {
		return nil, err
	}
	for _, rec := range p.Records {
		var e *store.UnreadableError
		if _, err := k.Listed(rec); errors.As(err, &e) {
			if all = append(all, e); len(all) == limit {
				break
			}
		}
	}
	return all, nil
}

func (rd *Reader) listOne(ctx context.Context, k *Kind, ns string, s *Selection) (*Found, error) {
	rec, head, err := rd.store.Get(ctx, k.Key(ns, s.Name))
	if err != nil {
		return nil, err
	}
	l := &Found{Meta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(head, 10)}}
	if rec != nil {
		ok, err := s.Picks(k, rec)
		if err != nil {
			return nil, err
		}
		if ok {
			l.Records = []*store.Record{rec}
		}
	}
	return l, nil
}

func (rd *Reader) listError(err error, s *Selection, r store.Range) error {
	switch {
	case errors.Is(err, store.ErrCompacted):
		if s.Continue != "" {
			return status.Expired(encodeContinue(strings.TrimPrefix(r.After, r.Prefix)+"\x00", -1))
		}
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	case errors.Is(err, store.ErrFuture):
		return status.TooLarge(r.Revision, rd.store.Revision())
	}
	return err
}

// initialized is how many of the records that follow one are initialised, of n that there are.
func (rd *Reader) initialized(ctx context.Context, k *Kind, r store.Range, n int64) (int64, error) {
	if !rd.waiting.among(k) {
		return n, nil
	}
	r.Limit = 0
	p, err := rd.store.Range(ctx, r)
	if err != nil {
		return 0, err
	}
	n = 0
	for _, rec := range p.Records {
		h, err := held(k, rec)
		if err != nil {
			return 0, err
		}
		if !h {
			n++
		}
	}
	return n, nil
}

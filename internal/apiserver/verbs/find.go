// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/store"
)

// page is how many records are looked at in one read when a limited list selects only some.
const page = 500

// find reads the selected records of a kind from one revision.
//
// Which revision: the token's, when the list goes on; the named one, when resourceVersionMatch is Exact, or silent with a
// limit; else the newest, which is no older than anything a client can have seen.
func (a *API) find(ctx context.Context, k *Kind, ns string, s *selection) (*found, error) {
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
		want, err := revision(s.ResourceVersion)
		if err != nil {
			return nil, apierrors.NewBadRequest("invalid resource version: " + err.Error())
		}
		one := s.name != "" && (ns != "" || !k.Namespaced)
		switch {
		case want == 0:
		case s.ResourceVersionMatch == metav1.ResourceVersionMatchExact || s.ResourceVersionMatch == "" && limit > 0 && !one:
			r.Revision = want
		default:
			if now := a.Store.Revision(); want > now {
				return nil, status.TooLarge(want, now)
			}
		}
		if one && r.Revision == 0 {
			return a.findOne(ctx, k, ns, s)
		}
	}
	l := &found{}
	if s.all() && s.name == "" {
		r.Limit = limit
	} else if limit > 0 {
		r.Limit = max(page, limit)
	}
	for {
		p, err := a.Store.Range(ctx, r)
		if err != nil {
			return nil, a.listError(err, s, r)
		}
		l.meta.ResourceVersion = strconv.FormatInt(p.Revision, 10)
		if s.foresee != nil {
			if err := s.foresee(p.Records); err != nil {
				return nil, err
			}
		}
		for i, rec := range p.Records {
			r.After = rec.Key
			ok, err := s.picks(k, rec)
			if err != nil {
				return nil, err
			}
			if !ok {
				continue
			}
			l.records = append(l.records, rec)
			if limit > 0 && len(l.records) == limit {
				rest := int64(len(p.Records)-i-1) + p.Remaining
				if rest > 0 && s.hide && s.all() {
					if rest, err = a.shown(ctx, k, store.Range{Prefix: r.Prefix, After: rec.Key, Revision: p.Revision}, rest); err != nil {
						return nil, a.listError(err, s, r)
					}
				}
				if rest > 0 {
					l.meta.Continue = encodeContinue("/"+strings.TrimPrefix(rec.Key, r.Prefix)+"\x00", p.Revision)
					if s.all() {
						l.meta.RemainingItemCount = &rest
					}
				}
				return l, nil
			}
		}
		if p.Remaining == 0 {
			return l, nil
		}
		r.Revision = p.Revision
	}
}

func (a *API) findOne(ctx context.Context, k *Kind, ns string, s *selection) (*found, error) {
	rec, now, err := a.Store.Get(ctx, k.Key(ns, s.name))
	if err != nil {
		return nil, err
	}
	l := &found{meta: metav1.ListMeta{ResourceVersion: strconv.FormatInt(now, 10)}}
	if rec != nil {
		ok, err := s.picks(k, rec)
		if err != nil {
			return nil, err
		}
		if ok {
			l.records = []*store.Record{rec}
		}
	}
	return l, nil
}

// picks says whether a record is selected. It decodes only if it must.
func (s *selection) picks(k *Kind, rec *store.Record) (bool, error) {
	if s.hide {
		if h, err := held(k, rec); err != nil || h {
			return false, err
		}
	}
	if s.all() && s.name == "" {
		return true, nil
	}
	forms := k.Listed
	if s.Watch {
		forms = k.Forms // other watchers want them too
	}
	f, err := forms(rec)
	if err != nil {
		return false, err
	}
	if s.name != "" && f.Hub.GetName() != s.name {
		return false, nil
	}
	return s.matches(f)
}

func (a *API) listError(err error, s *selection, r store.Range) error {
	switch {
	case errors.Is(err, store.ErrCompacted):
		if s.Continue != "" {
			return status.Expired(encodeContinue(strings.TrimPrefix(r.After, r.Prefix)+"\x00", -1))
		}
		return apierrors.NewResourceExpired("The resourceVersion for the provided list is too old.")
	case errors.Is(err, store.ErrFuture):
		return status.TooLarge(r.Revision, a.Store.Revision())
	}
	return err
}

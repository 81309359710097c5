// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

// derived are the verbs of kinds whose objects are made from those of another kind.
var derived = map[string]func(*req) error{"list": listDerived, "get": getDerived, "watch": watchDerived}

// listDerived answers with the objects that are made from the selected sources.
func listDerived(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	s, err := q.listOptions()
	if err != nil {
		return err
	}
	objs, _, err := derive(q, &registry.Selection{Labels: s.Labels, Fields: s.Fields, Name: s.Name})
	if err != nil {
		return err
	}
	if q.accept.target == nil {
		list := q.ver().Derived.List(objs)
		setTypeMeta(list, q.kind.GroupVersionKind(q.ver().Name).GroupVersion().String(), q.kind.ListKind)
		return q.encode(http.StatusOK, list)
	}
	if t := *q.accept.target; len(objs) == 0 && t.Kind == "Table" { // upstream takes the columns from the first object
		if _, err := q.converter(t); err != nil {
			return err
		}
		return q.encode(http.StatusOK, &metav1.Table{TypeMeta: metav1.TypeMeta{APIVersion: t.GroupVersion(), Kind: t.Kind}})
	}
	cached := make([]*watchcache.CachedObject, len(objs))
	for i, obj := range objs {
		cached[i] = q.kind.NewCachedObject(obj)
	}
	return q.respondAs(http.StatusOK, true, cached, metav1.ListMeta{})
}

// getDerived answers with the object that is made from the source that the path names.
func getDerived(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	objs, exists, err := derive(q, &registry.Selection{Name: q.name})
	if err != nil {
		return err
	}
	if len(objs) == 0 {
		return q.ver().Derived.Missing(q.ns, q.name, exists)
	}
	return q.respond(http.StatusOK, q.kind.NewCachedObject(objs[0]))
}

// watchDerived refuses a list with the parameter watch.
func watchDerived(q *req) error {
	return apierrors.NewMethodNotSupported(q.gr(), "watch")
}

// derive makes the objects of the selected sources. exists reports whether there are sources.
func derive(q *req, s *registry.Selection) (objs []resource.Object, exists bool, err error) {
	from := q.kinds.Get(q.ver().Derived.From)
	if from == nil {
		return nil, false, nil
	}
	records, err := findSources(q, from, s)
	if err != nil || len(records) == 0 {
		return nil, false, err
	}
	sources := make([]resource.Object, len(records))
	for i, r := range records {
		f, err := from.Listed(r)
		if err != nil {
			return nil, false, err
		}
		sources[i] = f.Hub
	}
	objs, err = q.ver().Derived.Make(q.ctx, q.backend, sources)
	return objs, true, err
}

// findSources returns the selected sources.
func findSources(q *req, from *registry.Kind, s *registry.Selection) ([]*store.Record, error) {
	if find := q.ver().Derived.Find; find != nil && s.Name == "" && s.Labels != nil {
		if names, known := find(q.ns, s.Labels); known {
			var all []*store.Record
			for _, name := range names {
				one := *s
				one.Name = name
				found, err := q.reader.List(q.ctx, from, q.ns, &one)
				if err != nil {
					return nil, err
				}
				all = append(all, found.Records...)
			}
			return all, nil
		}
	}
	found, err := q.reader.List(q.ctx, from, q.ns, s)
	if err != nil {
		return nil, err
	}
	return found.Records, nil
}

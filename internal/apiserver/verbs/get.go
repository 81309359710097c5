// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/internal/apiserver/status"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/store"
)

// get answers with one object, at the newest revision.
func get(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	f, err := q.read()
	if err != nil {
		return err
	}
	return q.respond(200, f)
}

// read is the forms of the object that the path names. The newest revision serves every resourceVersion that a client may ask for.
func (q *req) read() (*watchcache.CachedObject, error) {
	rec, head, err := q.record()
	if err != nil {
		return nil, err
	}
	if query := q.query(); query != nil {
		if query.Has("export") && truth(query.Get("export")) {
			return nil, apierrors.NewBadRequest("the export parameter, deprecated since v1.14, is no longer supported")
		}
		want, err := registry.ParseResourceVersion(query.Get("resourceVersion"))
		if err != nil {
			return nil, err
		}
		if want > head {
			return nil, status.TooLarge(want, head)
		}
	}
	if rec == nil {
		return nil, apierrors.NewNotFound(q.gr(), q.name)
	}
	return q.kind.Cached(rec)
}

func (q *req) record() (*store.Record, int64, error) {
	return q.reader.Get(q.ctx, q.kind, q.ns, q.name)
}

func setTypeMeta(obj runtime.Object, apiVersion, kind string) {
	obj.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
}

// truth reads a flag of a query as clients of Kubernetes mean it.
func truth(value string) bool { return value != "0" && !strings.EqualFold(value, "false") }

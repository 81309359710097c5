// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/warning"
	"sigs.k8s.io/yaml"

	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"

	"github.com/mortise-dev/mortise/store"
)

// deleteCollection deletes what a list would find, and answers with that list.
func deleteCollection(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	s, err := q.listOptions()
	if err != nil {
		return err
	}
	opts, err := q.deleteOptions()
	if err != nil {
		return err
	}
	if unsafely(opts) {
		return invalidOptions("DeleteOptions", field.ErrorList{field.Invalid(field.NewPath("ignoreStoreReadErrorWithClusterBreakingPotential"), true,
			"is not allowed with DELETECOLLECTION, try again after removing the option")})
	}
	q.warnDelete(opts)
	ctx, cancel := context.WithTimeout(warning.WithWarningRecorder(q.ctx, q.warn), collectionTimeout)
	defer cancel()
	s.hide = false // who deletes all, means all
	l, err := q.find(ctx, q.kind, q.ns, s)
	if err != nil {
		return err
	}
	if err := q.deleteListed(ctx, l.records, opts); err != nil {
		return err
	}
	return q.respondList(http.StatusOK, l)
}

// collectionTimeout bounds what the deletion of a collection may take.
const collectionTimeout = time.Minute

// Few objects are deleted in their order; many by some workers at once, so that their commits share the disk's time.
const (
	deletedInOrder = 64
	deleteWorkers  = 16
)

// deleteListed deletes objects, and stops at the first that it may not delete. One that is gone meanwhile is as wished.
func (q *req) deleteListed(ctx context.Context, records []*store.Record, opts *metav1.DeleteOptions) error {
	one := func(ctx context.Context, rec *store.Record) error {
		f, err := q.kind.Forms(rec)
		if err != nil {
			return err
		}
		d := q.deletion(f.Hub.GetNamespace(), f.Hub.GetName(), opts)
		d.collection = true
		if _, _, err = q.delete(ctx, d); apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	ordered := records[:min(len(records), deletedInOrder)]
	for _, rec := range ordered {
		if err := one(ctx, rec); err != nil {
			return err
		}
	}
	rest := records[len(ordered):]
	if len(rest) == 0 {
		return nil
	}
	workers, working := errgroup.WithContext(ctx)
	workers.SetLimit(deleteWorkers)
	for _, rec := range rest {
		if working.Err() != nil {
			break
		}
		workers.Go(func() error { return one(working, rec) })
	}
	if err := workers.Wait(); err != nil {
		return err
	}
	return ctx.Err()
}

// decodeDeleteOptions reads a body: DeleteOptions of meta.k8s.io/v1, or of any group, as old clients send them.
func decodeDeleteOptions(body []byte, media string, o *metav1.DeleteOptions) error {
	own := metav1.SchemeGroupVersion.WithKind("DeleteOptions")
	var said schema.GroupVersionKind
	switch media {
	case mediaCBOR:
		return cborDeleteOptions(body, own, o)
	case mediaProtobuf:
		var u runtime.Unknown
		if string(body) == protobufMagic {
			return badRequest(errors.New("empty body"))
		}
		if len(body) < len(protobufMagic) || string(body[:len(protobufMagic)]) != protobufMagic {
			return badRequest(errors.New("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]"))
		}
		if err := u.Unmarshal(body[len(protobufMagic):]); err != nil {
			return badRequest(err)
		}
		if said = withDefaults(schema.FromAPIVersionAndKind(u.APIVersion, u.Kind), own); said.Kind == own.Kind {
			if err := o.Unmarshal(u.Raw); err != nil {
				return badRequest(err)
			}
			return nil
		}
	default:
		if media == mediaYAML {
			j, err := yaml.YAMLToJSON(body)
			if err != nil {
				return badRequest(err)
			}
			body = j
		}
		found, err := jsonserializer.DefaultMetaFactory.Interpret(body)
		if err != nil {
			return badRequest(err)
		}
		if said = withDefaults(*found, own); said.Kind == own.Kind {
			if _, err := unmarshal(body, o, false); err != nil {
				return badRequest(err)
			}
			return nil
		}
	}
	return badRequest(fmt.Errorf("no kind %q is registered for version %q in scheme %q", said.Kind, said.GroupVersion(), schemeName))
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/registry"
	"github.com/mortise-dev/mortise/resource"
)

// deleteOne begins or ends the deletion of an object.
func deleteOne(q *req) error {
	if err := q.negotiate(); err != nil {
		return err
	}
	opts, err := q.deleteOptions()
	if err != nil {
		return err
	}
	q.warnDelete(opts)
	if keep := q.kind.Strategy.RefuseDelete; keep != nil {
		if err := keep(q.name); err != nil {
			return apierrors.NewForbidden(q.kind.GroupResource(), q.name, err)
		}
	}
	ctx, cancel := q.writing()
	defer cancel()
	d := q.deletion(q.ns, q.name, opts, false)
	if unsafely(opts) {
		if err := q.mayDeleteUnsafely(ctx); err != nil {
			return err
		}
		if err := q.writer.DeleteUnreadable(ctx, d); err != nil {
			return err
		}
		return q.respondOther(http.StatusOK, &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusOK,
			Details: &metav1.StatusDetails{Name: q.name, Kind: q.kind.Descriptor.Kind},
		}, "v1", "Status")
	}
	f, gone, err := q.writer.Delete(ctx, d)
	if err != nil {
		return err
	}
	code := http.StatusOK
	//nolint:staticcheck // the deprecated field still decides this for the clients that send it
	if o := opts.OrphanDependents; !gone && o != nil && !*o {
		code = http.StatusAccepted
	}
	if !gone || q.kind.Strategy.ReturnDeleted {
		return q.respond(code, f)
	}
	return q.respondOther(code, &metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{Name: f.Hub.GetName(), Group: q.kind.Group, Kind: q.kind.Resource, UID: f.Hub.GetUID()},
	}, "v1", "Status")
}

// warnDelete sends the kind's warnings about the client's options.
func (q *req) warnDelete(opts *metav1.DeleteOptions) {
	if warn := q.kind.Strategy.WarnDelete; warn != nil {
		for _, text := range warn(opts) {
			q.warn.AddWarning("", text)
		}
	}
}

// deletion prepares a deletion, with admission, which gets no name if the request deletes a collection.
func (q *req) deletion(ns, name string, opts *metav1.DeleteOptions, collection bool) *registry.Deletion {
	d := &registry.Deletion{Kind: q.kind, Namespace: ns, Name: name, Options: opts}
	if len(q.Admission) == 0 {
		return d
	}
	d.Validate = func(ctx context.Context, old resource.Object) error {
		at := q.attributes(admit.Delete, nil, old, opts, len(opts.DryRun) > 0)
		at.Namespace, at.Name = ns, name
		if q.kind.Resource == "namespaces" && q.kind.Group == "" {
			at.Namespace = name
		}
		if collection {
			at.Name = ""
		}
		if err := q.Admission.Mutate(ctx, q.lagging, at); err != nil {
			return err
		}
		return q.Admission.Validate(ctx, q.lagging, at)
	}
	return d
}

// deleteOptions come as a body or, without one, as a query.
func (q *req) deleteOptions() (*metav1.DeleteOptions, error) {
	o := &metav1.DeleteOptions{}
	body, err := q.body()
	if err != nil {
		return nil, err
	}
	if len(body) > 0 {
		media, err := q.inputMedia()
		if err != nil {
			return nil, err
		}
		if err := decodeDeleteOptions(body, media, o); err != nil {
			return nil, err
		}
		q.auditOptions(o)
	} else if v := q.query(); v != nil {
		if err := metav1.Convert_url_Values_To_v1_DeleteOptions(&v, o, nil); err != nil {
			return nil, badRequest(err)
		}
	}
	if err := invalidOptions("DeleteOptions", validation.ValidateDeleteOptions(o)); err != nil {
		return nil, err
	}
	o.TypeMeta = metaKind("DeleteOptions")
	return o, nil
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/watchcache"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
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
	d := q.deletion(q.ns, q.name, opts)
	if unsafely(opts) {
		if err := q.mayDeleteUnsafely(ctx); err != nil {
			return err
		}
		if err := q.deleteUnreadable(ctx, d); err != nil {
			return err
		}
		return q.respondOther(http.StatusOK, &metav1.Status{
			TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess, Code: http.StatusOK,
			Details: &metav1.StatusDetails{Name: q.name, Kind: q.kind.Descriptor.Kind},
		}, "v1", "Status")
	}
	f, gone, err := q.delete(ctx, d)
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

// warnDelete says what the kind has to say of the client's options.
func (q *req) warnDelete(opts *metav1.DeleteOptions) {
	if warn := q.kind.Strategy.WarnDelete; warn != nil {
		for _, text := range warn(opts) {
			q.warn.AddWarning("", text)
		}
	}
}

// deletion prepares a deletion, with admission.
func (q *req) deletion(ns, name string, opts *metav1.DeleteOptions) *deletion {
	d := &deletion{kind: q.kind, ns: ns, name: name, opts: opts}
	if len(q.Admission) == 0 {
		return d
	}
	d.validate = func(ctx context.Context, old resource.Object) error {
		at := q.attributes(admit.Delete, nil, old, opts, len(opts.DryRun) > 0)
		at.Namespace, at.Name = ns, name
		if q.kind.Resource == "namespaces" && q.kind.Group == "" {
			at.Namespace = name
		}
		if d.collection {
			at.Name = ""
		}
		if err := q.Admission.Mutate(ctx, &Backend{q.API}, at); err != nil {
			return err
		}
		return q.Admission.Validate(ctx, &Backend{q.API}, at)
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

// errDeleting ends a deletion that is under way already and that the options do not hasten.
var errDeleting = errors.New("already being deleted")

type deletion struct {
	kind     *Kind
	ns, name string
	opts     *metav1.DeleteOptions
	// collection: admission is asked about the collection and is told no name.
	collection bool
	validate   func(ctx context.Context, old resource.Object) error // admission; nil: none
	// marked is the object as this deletion has told that its grace is over. From then on any change of it ends it.
	marked *watchcache.Forms
}

// delete deletes an object or begins to; gone says which. It tries again when others change the object meanwhile.
func (a *API) delete(ctx context.Context, d *deletion) (f *watchcache.Forms, gone bool, err error) {
	key := d.kind.Key(d.ns, d.name)
	for {
		rec, _, err := a.Store.Get(ctx, key)
		if err != nil {
			return nil, false, err
		}
		if rec == nil && d.marked != nil { // another's write was the end of it
			return d.marked, true, nil
		}
		if rec == nil {
			return nil, false, apierrors.NewNotFound(d.kind.GroupResource(), d.name)
		}
		if d.marked != nil {
			if now, err := d.kind.Forms(rec); err == nil && now.Hub.GetUID() != d.marked.Hub.GetUID() {
				return d.marked, true, nil // and there is another of its name
			}
		}
		f, gone, err := a.deleteOnce(ctx, d, rec)
		var conflict *store.ConflictError
		if !errors.As(err, &conflict) {
			return f, gone, err
		}
		if ctx.Err() != nil {
			return nil, false, ctx.Err()
		}
	}
}

func (a *API) deleteOnce(ctx context.Context, d *deletion, rec *store.Record) (*watchcache.Forms, bool, error) {
	k, st := d.kind, &d.kind.Strategy
	cur, err := k.Forms(rec)
	if err != nil {
		return nil, false, err
	}
	opts := d.opts.DeepCopy()
	dryRun := len(opts.DryRun) > 0
	if err := a.preconditions(k, cur.Hub, opts); err != nil {
		return nil, false, err
	}
	if st.BeginDelete != nil {
		if cur.Hub.GetDeletionTimestamp() == nil {
			f, err := a.beginDelete(ctx, d, rec, cur, opts)
			return f, false, err
		}
		if len(st.Finalizers(cur.Hub)) > 0 {
			return cur, false, nil
		}
	}
	obj := own(cur)
	graceful, err := a.grace(ctx, st, obj, opts)
	if errors.Is(err, errDeleting) {
		return cur, false, nil
	} else if err != nil {
		return nil, false, err
	}
	if d.validate != nil {
		if err := d.validate(ctx, cur.Hub); err != nil {
			return nil, false, err
		}
	}
	finalizers := withPropagation(st, obj.GetFinalizers(), opts)
	if !slices.Equal(finalizers, obj.GetFinalizers()) {
		obj.SetFinalizers(finalizers)
	}
	pending := len(finalizers) > 0
	switch {
	case graceful && (*opts.GracePeriodSeconds > 0 || pending):
	case pending:
		a.mark(obj)
	default:
		f, err := a.deleteNow(ctx, d, rec, cur, obj, graceful)
		return f, true, err
	}
	_, f, err := a.replaceRecord(ctx, k, rec, cur, obj, writing{dryRun: dryRun})
	return f, false, err
}

// deleteNow takes an object away that nothing holds back, and returns what it last was. Of a graceful kind it is told first
// that its grace is over: watchers see that as a change of its own, and admission is asked about the changed object again.
func (a *API) deleteNow(ctx context.Context, d *deletion, rec *store.Record, cur *watchcache.Forms, obj resource.Object, graceful bool) (*watchcache.Forms, error) {
	k, dryRun := d.kind, len(d.opts.DryRun) > 0
	if graceful {
		var err error
		if rec, cur, err = a.replaceRecord(ctx, k, rec, cur, obj, writing{dryRun: dryRun}); err != nil {
			return nil, err
		}
		d.marked = cur
		if d.validate != nil {
			if err := d.validate(ctx, cur.Hub); err != nil {
				return nil, err
			}
		}
	}
	if dryRun {
		return cur, nil
	}
	at, err := a.remove(ctx, k, rec, cur.Hub)
	if err != nil || !k.Strategy.ReturnDeleted {
		return cur, err
	}
	last := own(cur)
	last.SetResourceVersion(strconv.FormatInt(at, 10))
	return k.NewForms(last), nil
}

// beginDelete marks an object whose deletion is a state of its own (namespaces, definitions): the mark says when it began, and
// nothing of grace.
func (a *API) beginDelete(ctx context.Context, d *deletion, rec *store.Record, cur *watchcache.Forms, opts *metav1.DeleteOptions) (*watchcache.Forms, error) {
	if d.validate != nil {
		if err := d.validate(ctx, cur.Hub); err != nil {
			return nil, err
		}
	}
	obj := own(cur)
	now := metav1.NewTime(a.Now()).Rfc3339Copy()
	obj.SetDeletionTimestamp(&now)
	st := &d.kind.Strategy
	if d.kind.Group == "" {
		//nolint:staticcheck // orphanDependents is deprecated and still honoured
		if o := opts.OrphanDependents; o != nil && !*o {
			foreground := metav1.DeletePropagationForeground
			opts.OrphanDependents, opts.PropagationPolicy = nil, &foreground
		}
		obj.SetFinalizers(withPropagation(st, obj.GetFinalizers(), opts))
	}
	st.BeginDelete(obj)
	_, f, err := a.replaceRecord(ctx, d.kind, rec, cur, obj, writing{dryRun: len(opts.DryRun) > 0})
	return f, err
}

func (a *API) preconditions(k *Kind, obj resource.Object, opts *metav1.DeleteOptions) error {
	p := opts.Preconditions
	if p == nil {
		return nil
	}
	gr := schema.GroupResource{Group: k.HubGroup, Resource: k.Descriptor.Kind}
	uid, rv := "the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated",
		"the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified"
	if k.Strategy.BeginDelete != nil {
		gr = k.GroupResource()
		begin := "Precondition"
		if k.Group != "" {
			begin = "precondition"
		}
		uid, rv = begin+" failed: UID in precondition: %s, UID in object meta: %s", begin+" failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s" // upstream's words
	}
	if p.UID != nil && *p.UID != obj.GetUID() {
		return apierrors.NewConflict(gr, obj.GetName(), fmt.Errorf(uid, *p.UID, obj.GetUID()))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != obj.GetResourceVersion() {
		return apierrors.NewConflict(gr, obj.GetName(), fmt.Errorf(rv, *p.ResourceVersion, obj.GetResourceVersion()))
	}
	return nil
}

// grace decides whether the object stays for a while, and writes into it for how long.
//
// Worked example: a pod with 30 s of grace is deleted at 12:00:00: it gets deletionTimestamp 12:00:30 and a grace of 30. A
// second DELETE with 40 changes nothing; one with 10 moves the timestamp to 12:00:10; one with 0 removes the pod.
func (a *API) grace(ctx context.Context, st *resource.Strategy, obj resource.Object, opts *metav1.DeleteOptions) (bool, error) {
	one := int64(1)
	if g := opts.GracePeriodSeconds; g != nil && *g < 0 {
		opts.GracePeriodSeconds = &one
	}
	if st.Graceful == nil {
		return false, nil
	}
	now := metav1.NewTime(a.Now()).Rfc3339Copy()
	if was := obj.GetDeletionTimestamp(); was != nil {
		had := obj.GetDeletionGracePeriodSeconds()
		if had == nil || *had == 0 {
			return false, nil
		}
		g := opts.GracePeriodSeconds
		if g == nil || *g >= *had {
			return false, errDeleting
		}
		period := *g
		at := metav1.NewTime(was.Add(time.Duration(period-*had) * time.Second))
		if at.Before(&now) {
			at = now
			if period != 0 {
				period = 1
			}
		}
		obj.SetDeletionTimestamp(&at)
		obj.SetDeletionGracePeriodSeconds(&period)
		opts.GracePeriodSeconds = &period
		return true, nil
	}
	if !st.Graceful(ctx, obj, opts) {
		return false, nil
	}
	if opts.GracePeriodSeconds == nil {
		return false, apierrors.NewInternalError(errors.New("options.GracePeriodSeconds should not be nil"))
	}
	at := metav1.NewTime(now.Add(time.Duration(*opts.GracePeriodSeconds) * time.Second))
	obj.SetDeletionTimestamp(&at)
	obj.SetDeletionGracePeriodSeconds(opts.GracePeriodSeconds)
	if g := obj.GetGeneration(); g > 0 {
		obj.SetGeneration(g + 1)
	}
	return true, nil
}

// mark writes into an object that it is being deleted and waits for its finalizers.
func (a *API) mark(obj resource.Object) {
	now := metav1.NewTime(a.Now()).Rfc3339Copy()
	was := obj.GetDeletionTimestamp()
	if g := obj.GetGeneration(); was == nil && g > 0 {
		obj.SetGeneration(g + 1)
	}
	if was == nil || was.After(now.Time) {
		obj.SetDeletionTimestamp(&now)
	}
	var zero int64
	obj.SetDeletionGracePeriodSeconds(&zero)
}

// withPropagation is an object's finalizers with those that the options' propagation asks for.
func withPropagation(st *resource.Strategy, has []string, opts *metav1.DeleteOptions) []string {
	orphan, foreground := propagation(st, has, opts)
	kept := make([]string, 0, len(has)+1)
	for _, f := range has {
		if f != metav1.FinalizerOrphanDependents && f != metav1.FinalizerDeleteDependents {
			kept = append(kept, f)
		}
	}
	if orphan {
		kept = append(kept, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		kept = append(kept, metav1.FinalizerDeleteDependents)
	}
	if len(kept) == len(has) && !slices.ContainsFunc(has, func(f string) bool { return !slices.Contains(kept, f) }) {
		return has
	}
	return kept
}

//nolint:staticcheck // orphanDependents is deprecated and still honoured
func propagation(st *resource.Strategy, has []string, opts *metav1.DeleteOptions) (orphan, foreground bool) {
	if opts.OrphanDependents != nil {
		return *opts.OrphanDependents, false
	}
	if p := opts.PropagationPolicy; p != nil {
		return *p == metav1.DeletePropagationOrphan, *p == metav1.DeletePropagationForeground
	}
	for _, f := range has {
		switch f {
		case metav1.FinalizerOrphanDependents:
			return true, false
		case metav1.FinalizerDeleteDependents:
			return false, true
		}
	}
	return st.GarbageCollection == metav1.DeletePropagationOrphan, st.GarbageCollection == metav1.DeletePropagationForeground
}

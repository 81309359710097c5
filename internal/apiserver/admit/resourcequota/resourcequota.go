// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package resourcequota is the ResourceQuota plug-in: it rejects a write that would exceed its namespace's quotas, and
// charges an allowed write to them.
//
// Package internal/quota measures the usage of a write. An index that follows the store has the quotas of each namespace;
// in a namespace without any, a request costs one lookup. Elsewhere one request at a time checks those of its namespace
// (batch.go): it takes all waiting requests, checks them against the quotas one after the other (check.go), and writes each
// changed quota once, on condition that it did not change since it was read.
//
// # Charges and releases
//
// The plug-in charges a write before it is committed, so status.used is never less than the real usage. When the write
// fails afterwards (the name was taken, a later plug-in rejected it), the plug-in releases the charge before the client
// gets its response. The controller, which counts objects, releases usage of deleted objects. Its count must not miss a
// write that was charged and is not yet committed. So a write of a quota's status waits until the pending writes of its
// namespace have ended: the controller sends it as a dry run, counts, and writes on condition that nothing was charged
// meanwhile.
package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	quotaconfig "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota"
	maths "k8s.io/apiserver/pkg/quota/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/internal/quota"
	"github.com/mortise-dev/mortise/resource"
	"github.com/mortise-dev/mortise/store"
)

var quotas = schema.GroupResource{Resource: "resourcequotas"}

// Options are the plug-in's settings.
type Options struct {
	// Config is a resourcequota.admission.k8s.io Configuration; nil: only quotas limit resources.
	Config io.Reader
	// Now returns the current time; nil: time.Now.
	Now func() time.Time
}

// New makes the plug-in.
func New(o Options) (admit.Plugin, error) {
	limited, err := readConfig(o.Config)
	if err != nil {
		return nil, err
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return &plugin{
		limited: limited, now: o.Now, log: slog.New(slog.DiscardHandler), synced: func(context.Context, schema.GroupResource) {},
	}, nil
}

type plugin struct {
	admit.Readiness
	limited []quotaconfig.LimitedResource
	now     func() time.Time
	log     *slog.Logger
	synced  func(ctx context.Context, r schema.GroupResource)
	index   admit.Index[*corev1.ResourceQuota]
	spaces  sync.Map // namespace → *space
}

var (
	_ admit.Validator = (*plugin)(nil)
	_ admit.Follower  = (*plugin)(nil)
	_ admit.Hosted    = (*plugin)(nil)
)

func (*plugin) Name() string { return "ResourceQuota" }

// Join implements [admit.Hosted].
func (p *plugin) Join(h *admit.Host) error {
	if h.Log != nil {
		p.log = h.Log
	}
	if h.Synced != nil {
		p.synced = h.Synced
	}
	return nil
}

// Follows implements [admit.Follower].
func (*plugin) Follows() []schema.GroupResource { return []schema.GroupResource{quotas} }

// Load implements [admit.Follower].
func (p *plugin) Load(ctx context.Context, stored feed.Lister) error {
	return p.index.Load(ctx, stored, quotas)
}

// Apply implements [admit.Follower].
func (p *plugin) Apply(_ context.Context, c *feed.Change) error {
	p.index.Apply(c)
	if s, ok := p.spaces.Load(c.Namespace); ok {
		known := p.index.In(c.Namespace)
		if len(known) == 0 {
			p.spaces.Delete(c.Namespace)
		}
		if !slices.ContainsFunc(known, unsettled) {
			s.(*space).open()
		}
	}
	return nil
}

// Handles implements [admit.Filter].
func (p *plugin) Handles(a *admit.Attributes) bool {
	if a.Namespace == "" || a.Operation != admit.Create && a.Operation != admit.Update || a.Is("", "namespaces", "") {
		return false
	}
	return len(p.index.In(a.Namespace)) > 0 || len(p.limited) > 0 || p.Refuse(a) != nil
}

// Validate rejects a write that would exceed a quota, and charges the others.
func (p *plugin) Validate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if !p.Handles(a) {
		return nil
	}
	known, unread := p.index.In(a.Namespace), p.Refuse(a)
	if a.Is("", "resourcequotas", "status") {
		p.settle(ctx, a)
		return nil
	}
	w := &work{attributes: a, cluster: cluster{b, p.now}}
	if w.evaluator = quota.For(a.Descriptor.GroupResource(), w.cluster); w.evaluator == nil || !w.evaluator.Charges(write(a)) {
		return nil
	}
	if unread != nil {
		return unread
	}
	if concerned, err := p.concerned(ctx, w, known); err != nil || !concerned {
		return err
	}
	w.measure(ctx)
	if len(known) == 0 {
		_, err := (&checker{p.limited}).check(ctx, nil, w)
		return err
	}
	s := p.space(a.Namespace)
	if a.DryRun {
		return p.run(ctx, b, s, w)
	}
	end, err := s.enter(ctx)
	if err != nil {
		return err
	}
	if err := p.run(ctx, b, s, w); err != nil {
		end()
		return err
	}
	a.OnEnd(func(err error) {
		defer end()
		if err == nil || len(w.charged) == 0 || !certain(err) {
			return
		}
		back := &work{attributes: a, refund: w.charged}
		if err := p.run(context.WithoutCancel(ctx), b, s, back); err != nil {
			p.log.ErrorContext(ctx, "Could not release the quota of a failed write", "namespace", a.Namespace,
				"error", err) // the controller's next count corrects it
		}
	})
	return nil
}

// concerned reports whether any quota, or what is limited without one, speaks of the write's resource.
func (p *plugin) concerned(ctx context.Context, w *work, known []*corev1.ResourceQuota) (bool, error) {
	if len(p.limited) > 0 {
		return true, nil
	}
	for _, q := range known {
		for _, hard := range []corev1.ResourceList{q.Status.Hard, q.Spec.Hard} {
			if names, err := w.evaluator.Names(ctx, maths.ResourceNames(hard)); err != nil || len(names) > 0 {
				return err == nil, err
			}
		}
	}
	return false, nil
}

// certain reports whether a write that failed has certainly not been committed. The store tells of the end of a request's context only
// when it has not stored anything.
func certain(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	var status apierrors.APIStatus
	var conflict *store.ConflictError
	return errors.As(err, &conflict) || errors.As(err, &status) && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err)
}

// unsettled reports whether a quota's limits are not in force yet, because its controller has not counted what there is.
func unsettled(q *corev1.ResourceQuota) bool {
	for name := range q.Spec.Hard {
		if _, ok := q.Status.Hard[name]; !ok {
			return true
		}
	}
	return false
}

// settle makes a write of a quota's status wait until the pending writes of the namespace have ended. A dry run begins
// a count: while the quota's limits are not in force, new writes wait for the count to end.
func (p *plugin) settle(ctx context.Context, a *admit.Attributes) {
	s := p.space(a.Namespace)
	if q, ok := a.Old.(*corev1.ResourceQuota); ok && a.DryRun && unsettled(q) {
		s.shut()
	}
	s.drain(ctx)
}

func (p *plugin) space(namespace string) *space {
	if s, ok := p.spaces.Load(namespace); ok {
		return s.(*space)
	}
	s, _ := p.spaces.LoadOrStore(namespace, newSpace())
	return s.(*space)
}

func write(a *admit.Attributes) quota.Write {
	return quota.Write{Create: a.Operation == admit.Create, Subresource: a.Subresource, Object: a.Object, Old: a.Old}
}

// cluster answers the evaluators' reads from the store.
type cluster struct {
	b   resource.Backend
	now func() time.Time
}

func (c cluster) Now() time.Time { return c.now() }

func (c cluster) DeviceClasses(ctx context.Context) ([]*resourcev1.DeviceClass, error) {
	return list[*resourcev1.DeviceClass](ctx, c.b, schema.GroupResource{Group: "resource.k8s.io", Resource: "deviceclasses"}, "")
}

func (c cluster) DeviceClaims(ctx context.Context, namespace string) ([]*resourcev1.ResourceClaim, error) {
	return list[*resourcev1.ResourceClaim](ctx, c.b, schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceclaims"}, namespace)
}

func (c cluster) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	obj, err := c.b.Get(ctx, schema.GroupResource{Resource: "pods"}, namespace, name)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("pod %s/%s is a %T", namespace, name, obj)
	}
	return pod, nil
}

func list[T resource.Object](ctx context.Context, b resource.Backend, r schema.GroupResource, namespace string) ([]T, error) {
	objs, err := b.List(ctx, r, namespace)
	if apierrors.IsNotFound(err) {
		return nil, nil // the server does not have this kind
	}
	var out []T
	for _, obj := range objs {
		if o, ok := obj.(T); ok {
			out = append(out, o)
		}
	}
	return out, err
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"log/slog"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
	"github.com/mortise-dev/mortise/resource"
)

var leases = schema.GroupResource{Group: coordinationv1.GroupName, Resource: "leases"}

// identityLease is the Lease by which a server shows that it is there (KEP-1965).
type identityLease struct {
	backend resource.Backend
	name    string
	restore func(context.Context) error // creates the Lease if it is gone; nil: it cannot be
	log     *slog.Logger
	// versions are reported as long as the Lease is held; nil: they are not.
	versions *storageVersions
}

// hold renews the Lease until ctx ends, removes those of servers that are gone, and calls also each time.
func (l *identityLease) hold(ctx context.Context, also func()) {
	t := time.NewTicker(bootstrap.LeaseSeconds * time.Second / 6)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-t.C:
			also()
			if err := l.renew(ctx, now); err != nil && ctx.Err() == nil {
				l.log.WarnContext(ctx, "Could not renew the server's Lease", "name", l.name, "error", err)
			}
			if err := l.collect(ctx, now); err != nil && ctx.Err() == nil {
				l.log.WarnContext(ctx, "Could not remove the expired Leases of other servers", "error", err)
			}
			if l.versions != nil {
				l.versions.keep(ctx)
			}
		}
	}
}

// renew renews the Lease. Another server, whose clock is ahead, may have removed it: it is made again then.
func (l *identityLease) renew(ctx context.Context, now time.Time) error {
	err := l.write(ctx, now)
	if !apierrors.IsNotFound(err) || l.restore == nil {
		return err
	}
	if err := l.restore(ctx); err != nil {
		return err
	}
	return l.write(ctx, now)
}

func (l *identityLease) write(ctx context.Context, now time.Time) error {
	_, err := l.backend.Update(ctx, leases, metav1.NamespaceSystem, l.name, false, func(obj resource.Object) error {
		renewed := metav1.NewMicroTime(now)
		obj.(*coordinationv1.Lease).Spec.RenewTime = &renewed
		return nil
	})
	return err
}

// collect deletes the Leases of servers that have not renewed theirs, of hosts that had other names, for example. As kube-apiserver does.
func (l *identityLease) collect(ctx context.Context, now time.Time) error {
	all, err := l.backend.List(ctx, leases, metav1.NamespaceSystem)
	if err != nil {
		return err
	}
	for _, obj := range all {
		lease, ok := obj.(*coordinationv1.Lease)
		if !ok || lease.Labels[bootstrap.IdentityLabel] != bootstrap.IdentityValue || lease.Name == l.name || !expired(lease, now) {
			continue
		}
		uid, revision := lease.UID, lease.ResourceVersion
		err := l.backend.Delete(ctx, leases, lease.Namespace, lease.Name, &metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &revision}, // it may be renewed at this moment
		})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return err
		}
	}
	return nil
}

// expired reports whether a Lease has not been renewed in time. One without times counts as expired.
func expired(l *coordinationv1.Lease, now time.Time) bool {
	return l.Spec.RenewTime == nil || l.Spec.LeaseDurationSeconds == nil ||
		l.Spec.RenewTime.Add(time.Duration(*l.Spec.LeaseDurationSeconds)*time.Second).Before(now)
}

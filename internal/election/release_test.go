// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package election

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// lease is a Lease that others write, too: each of the first conflicts updates finds that it has changed.
type lease struct {
	resourcelock.Interface
	holder    string
	conflicts int
	broken    error
	updates   int
}

func (l *lease) Get(context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	return &resourcelock.LeaderElectionRecord{HolderIdentity: l.holder, LeaderTransitions: 3}, nil, nil
}

func (l *lease) Update(_ context.Context, r resourcelock.LeaderElectionRecord) error {
	l.updates++
	switch {
	case l.broken != nil:
		return l.broken
	case l.updates <= l.conflicts:
		return apierrors.NewConflict(schema.GroupResource{Resource: "leases"}, "probe", errors.New("changed"))
	}
	l.holder = r.HolderIdentity
	return nil
}

func TestRelease(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name    string
		lease   lease
		holder  string // afterwards
		updates int
		err     error
	}{
		{name: "held", lease: lease{holder: "me"}, updates: 1},
		{name: "renewed meanwhile", lease: lease{holder: "me", conflicts: 2}, updates: 3},
		{name: "taken by another", lease: lease{holder: "another"}, holder: "another"},
		{name: "an error", lease: lease{holder: "me", broken: broken}, holder: "me", updates: 1, err: broken},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := &election{Options: Options{Identity: "me", RenewDeadline: time.Minute}, lock: &c.lease}
			if err := e.release(t.Context()); !errors.Is(err, c.err) {
				t.Errorf("error %v, want %v", err, c.err)
			}
			if c.lease.holder != c.holder || c.lease.updates != c.updates {
				t.Errorf("held by %q after %d updates, want %q after %d", c.lease.holder, c.lease.updates, c.holder, c.updates)
			}
		})
	}
}

// TestHandOver: whoever waits for a Lease gets it as soon as the holder has released it, not at its next attempt.
func TestHandOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		const retry = time.Minute
		took := make(chan string, 2)
		run := func(name string) (stop func()) {
			ctx, cancel := context.WithCancel(t.Context())
			e := &election{client: client, Options: Options{
				Component: "c", Namespace: "kube-system", Name: "c", Identity: name, Logger: slog.New(slog.DiscardHandler),
				LeaseDuration: 4 * retry, RenewDeadline: 3 * retry, RetryPeriod: retry, Leader: func(bool) {},
			}, lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "c"}, Client: client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: name},
			}}
			var done sync.WaitGroup
			done.Go(func() {
				for ctx.Err() == nil {
					if err := e.term(ctx, func(ctx context.Context) error {
						took <- name
						<-ctx.Done()
						return ctx.Err()
					}); err != nil && ctx.Err() == nil {
						t.Errorf("%s: %v", name, err)
					}
				}
			})
			return func() { cancel(); done.Wait() }
		}
		stopFirst := run("first")
		if got := <-took; got != "first" {
			t.Fatalf("%s works", got)
		}
		stopSecond := run("second")
		time.Sleep(2*retry + retry/2) // it has seen that the first renews the Lease
		began := time.Now()
		stopFirst()
		if got := <-took; got != "second" {
			t.Errorf("%s works", got)
		}
		if waited := time.Since(began); waited > time.Second {
			t.Errorf("the second waited for %s", waited)
		}
		stopSecond()
	})
}

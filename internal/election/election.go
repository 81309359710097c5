// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package election lets one of several processes work that share a cluster: the one that holds a Lease.
//
// [Run] waits for the Lease, works while it is held, and waits again when it was lost. It releases the Lease after the work
// has ended: so others need not wait until it expires, and never work at the same time. Those that wait watch the Lease, and try to get it
// as soon as it is released. The leases are those of kube-controller-manager and kube-scheduler, so that these can be candidates too.
package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/mortise-dev/mortise/internal/eventsink"
)

// Options say which Lease it is, and how it is held. The durations must be set.
type Options struct {
	Component       string // what events come from, and the Lease's name unless Name says another
	Namespace, Name string
	Identity        string // of this process, unlike that of any other
	// LeaseDuration is how long other candidates wait for a silent holder, RenewDeadline after how long without success the
	// holder stops leading, RetryPeriod the time between attempts.
	LeaseDuration, RenewDeadline, RetryPeriod time.Duration

	Logger *slog.Logger
	// Leader is called with whether this process holds the Lease: at each change, and once when another process holds it.
	Leader func(bool)
}

// Run calls work while the Lease is held; its context ends when the Lease is lost. It returns when ctx has ended, or with
// the error that work returns by itself.
func Run(ctx context.Context, config *rest.Config, o Options, work func(context.Context) error) error {
	client, err := kubernetes.NewForConfig(rest.AddUserAgent(rest.CopyConfig(config), "leader-election"))
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	events := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx))) // the last event is that the Lease was given up
	events.StartRecordingToSink(eventsink.New(context.WithoutCancel(ctx), client.CoreV1()))
	defer events.Shutdown()
	e := &election{Options: o, client: client, lock: &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}, Client: client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{
			Identity: o.Identity, EventRecorder: events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: o.Component}),
		},
	}}
	for ctx.Err() == nil {
		if err := e.term(ctx, work); err != nil {
			return err
		}
	}
	return nil
}

type election struct {
	Options
	client kubernetes.Interface
	lock   resourcelock.Interface
}

// term is the time from when the Lease is waited for until it is lost.
func (e *election) term(ctx context.Context, work func(context.Context) error) error {
	// The Lease is kept while the work ends, which is after ctx.
	keeping, drop := context.WithCancel(klog.NewContext(context.WithoutCancel(ctx), logr.FromSlogHandler(e.Logger.Handler())))
	defer drop()
	var (
		mu      sync.Mutex
		over    bool // the Lease is not waited for any more
		working = make(chan struct{})
		began   bool
		failure error
	)
	giveUp := func() { // ends the wait for the Lease, but not the work
		mu.Lock()
		defer mu.Unlock()
		if !began {
			over = true
			drop()
		}
	}
	stop := context.AfterFunc(ctx, giveUp)
	defer stop()
	var watching sync.WaitGroup
	defer watching.Wait()
	watched, unwatch := context.WithCancel(keeping)
	defer unwatch()
	watching.Go(func() { e.awaitRelease(watched, giveUp) })
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.lock, Name: e.Component,
		LeaseDuration: e.LeaseDuration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod,
		Callbacks: leaderelection.LeaderCallbacks{
			OnNewLeader: func(identity string) {
				mu.Lock()
				defer mu.Unlock()
				if identity != e.Identity && !began {
					e.Leader(false)
				}
			},
			OnStartedLeading: func(held context.Context) {
				mu.Lock()
				began = !over
				mu.Unlock()
				unwatch()
				if !began {
					return
				}
				defer close(working)
				defer drop()
				both, end := context.WithCancel(ctx)
				defer end()
				defer context.AfterFunc(held, end)()
				e.Leader(true)
				failure = work(both)
				if failure == nil && both.Err() == nil {
					failure = errors.New("ended by itself")
				}
				e.Leader(false)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("elect %s: %w", e.Component, err)
	}
	elector.Run(keeping)
	mu.Lock()
	over = true
	waiting := !began
	mu.Unlock()
	if !waiting {
		<-working
	}
	if ctx.Err() == nil && failure == nil && !waiting {
		e.Logger.Warn("Lost the Lease", "lease", e.lock.Describe())
	}
	if err := e.release(ctx); err != nil {
		e.Logger.Warn("Could not release the Lease", "lease", e.lock.Describe(), "error", err)
	}
	return failure
}

// awaitRelease calls released when another candidate gives up the Lease. It returns then, when this process has the Lease, and when ctx
// ends. The elector asks for the Lease at intervals in any case.
func (e *election) awaitRelease(ctx context.Context, released func()) {
	retry := time.NewTimer(0)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-retry.C:
		}
		if e.watchRelease(ctx, released) {
			return
		}
		retry.Reset(e.RetryPeriod)
	}
}

// watchRelease is one watch of awaitRelease. It reports whether there is nothing to watch for any more.
func (e *election) watchRelease(ctx context.Context, released func()) bool {
	one := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, e.Name).String()}
	w, err := e.client.CoordinationV1().Leases(e.Namespace).Watch(ctx, one) // begins with the Lease as it is
	if err != nil {
		return false
	}
	defer w.Stop()
	held := false // by another candidate
	for {
		var event watch.Event
		select {
		case <-ctx.Done():
			return true
		case event = <-w.ResultChan(): // an empty one when the watch has ended
		}
		lease, ok := event.Object.(*coordinationv1.Lease)
		if !ok {
			return false
		}
		holder := ptr.Deref(lease.Spec.HolderIdentity, "")
		switch {
		case event.Type != watch.Deleted && holder == e.Identity:
			return true
		case event.Type != watch.Deleted && holder != "":
			held = true
		case held:
			released()
			return true
		}
	}
}

// release releases the Lease if it is still held. The server may still process a last, abandoned renewal: it changes the
// Lease between the read and the write, and then both are repeated.
func (e *election) release(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), min(e.RenewDeadline, 5*time.Second))
	defer cancel()
	for {
		held, _, err := e.lock.Get(ctx)
		if apierrors.IsNotFound(err) || err == nil && held.HolderIdentity != e.Identity {
			return nil
		} else if err != nil {
			return err
		}
		now := metav1.Now()
		err = e.lock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: held.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
		})
		if !apierrors.IsConflict(err) || ctx.Err() != nil {
			return err
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devhook

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
)

const (
	// mostAgain is how often a configuration is redirected again within span. An operator that answers each write with its own
	// would go on for ever.
	mostAgain = 10
	span      = time.Minute
	// firstRetry and lastRetry bound the back-off after a call of the API server that failed.
	firstRetry, lastRetry = time.Second, 30 * time.Second
)

// followAll keeps configurations pointed at their targets until ctx ends, or one cannot be.
func (s *Session) followAll(ctx context.Context, ps []*pointed) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(ps))
	var group sync.WaitGroup
	for i, p := range ps {
		group.Go(func() {
			defer cancel()
			errs[i] = s.follow(ctx, p)
		})
	}
	group.Wait()
	return errors.Join(errs...)
}

// follower follows one configuration.
type follower struct {
	*pointed
	session  *Session
	followed bool        // it could be listed once
	again    []time.Time // when it was redirected again, within span
	pause    *time.Timer // until it may be redirected again; nil: it may
}

// follow keeps one configuration pointed at its target until ctx ends, or it cannot be. A watch that ends begins again with the state that
// the configuration has then, so that no change is missed.
func (s *Session) follow(ctx context.Context, p *pointed) error {
	f := &follower{pointed: p, session: s}
	defer f.stop()
	var wait time.Duration
	for failing := false; ; {
		begun := s.Now()
		err := f.watch(ctx, func() {
			if failing {
				s.say("%s can be watched again.\n", p)
			}
			failing, wait = false, 0
		})
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errGone), errors.Is(err, errTaken), apierrors.IsInvalid(err), apierrors.IsForbidden(err) && !f.followed:
			return err
		case (err == nil || expired(err)) && s.Now().Sub(begun) >= firstRetry:
			continue
		case err != nil && !expired(err) && !failing:
			failing = true
			s.say("%s: %v; trying again.\n", p, err)
		}
		wait = min(max(2*wait, firstRetry), lastRetry)
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return nil
		case <-t.C:
		}
	}
}

// expired reports whether the API server has forgotten the revision at which a watch was to begin, or go on.
func expired(err error) bool { return apierrors.IsResourceExpired(err) || apierrors.IsGone(err) }

// watch reads one watch to its end, which is no error. good is called when the API server has answered all calls that lead there.
func (f *follower) watch(ctx context.Context, good func()) error {
	client := f.session.Client.Resource(f.configuration.Resource)
	selector := fields.OneTermEqualSelector("metadata.name", f.configuration.Name).String()
	listing, cancel := context.WithTimeout(ctx, callTimeout)
	list, err := client.List(listing, metav1.ListOptions{FieldSelector: selector})
	cancel()
	if err != nil {
		return fmt.Errorf("list %s: %w", f, err)
	}
	f.followed = true
	var obj *unstructured.Unstructured
	for i := range list.Items {
		if list.Items[i].GetName() == f.configuration.Name {
			obj = &list.Items[i]
		}
	}
	if err := f.see(ctx, obj); err != nil {
		return err
	}
	w, err := client.Watch(ctx, metav1.ListOptions{FieldSelector: selector, ResourceVersion: list.GetResourceVersion()})
	if err != nil {
		return fmt.Errorf("watch %s: %w", f, err)
	}
	defer w.Stop()
	good()
	for {
		var paused <-chan time.Time
		if f.pause != nil {
			paused = f.pause.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-paused:
			f.stop()
			if err := f.pointAgain(ctx); err != nil {
				return err
			}
		case e, ok := <-w.ResultChan():
			if !ok {
				return nil
			}
			if e.Type == watch.Error {
				return fmt.Errorf("watch %s: %w", f, apierrors.FromObject(e.Object))
			}
			obj, _ := e.Object.(*unstructured.Unstructured)
			if e.Type == watch.Deleted {
				obj = nil
			} else if obj == nil || obj.GetName() != f.configuration.Name {
				continue
			}
			if err := f.see(ctx, obj); err != nil {
				return err
			}
		}
	}
}

// see looks at one state of the configuration, nil if it does not exist, and redirects it again if another client has changed it. After
// too many times it pauses.
func (f *follower) see(ctx context.Context, obj *unstructured.Unstructured) error {
	if obj == nil || obj.GetUID() != f.uid {
		return fmt.Errorf("%s was deleted: %w", f, errGone)
	}
	changes := f.changes(obj)
	if len(changes) == 0 || f.pause != nil && f.record.survives(obj) {
		return nil
	}
	now := f.session.Now()
	for len(f.again) > 0 && now.Sub(f.again[0]) >= span {
		f.again = f.again[1:]
	}
	if len(f.again) >= mostAgain && f.record.survives(obj) {
		wait := span - now.Sub(f.again[0])
		f.pause = time.NewTimer(wait)
		f.session.say("%s was changed %d times within a minute, at last: %s. It stays so for %s, and calls do not reach the target "+
			"meanwhile. Stop the program that writes it.\n", f, len(f.again)+1, describe(changes, obj, f.managedFields), wait.Round(time.Second))
		return nil
	}
	return f.pointAgain(ctx)
}

// pointAgain redirects the configuration again.
func (f *follower) pointAgain(ctx context.Context) error {
	wrote, err := f.session.point(ctx, f.pointed)
	if wrote {
		f.again = append(f.again, f.session.Now())
	}
	return err
}

// stop ends a pause.
func (f *follower) stop() {
	if f.pause != nil {
		f.pause.Stop()
		f.pause = nil
	}
}

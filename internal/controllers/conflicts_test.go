// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// TestConflictsDoNotAddUp has events bring a key back while the cache is behind, and then a write be refused once: that is tried again
// within seconds, not minutes.
func TestConflictsDoNotAddUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := shared(t)
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		var tries []time.Duration
		c := Controller{Name: "q", New: func(d *Deps) (Runner, error) {
			q := NewQueue[string](d, "q", 1)
			return RunnerFunc(func(ctx context.Context) error {
				q.Add("k")
				return q.Run(ctx, func(context.Context, string) error {
					tries = append(tries, time.Since(began))
					switch {
					case len(tries) < 30:
						time.Sleep(time.Second) // what an earlier failure put off comes in the meantime
						q.Add("k")
						return apierrors.NewConflict(schema.GroupResource{Resource: "things"}, "k", errors.New("it has changed"))
					case len(tries) == 30:
						return errors.New("not today")
					}
					return nil
				})
			}), nil
		}}
		done := make(chan error)
		go func() { done <- RunWith(ctx, []Controller{c}, d, Options{}) }()
		time.Sleep(time.Minute)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(tries) < 31 || tries[30]-tries[29] > 5*time.Second {
			t.Errorf("%d tries: %v", len(tries), tries)
		}
		time.Sleep(20 * time.Minute) // whatever timers are left run out
	})
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/clock"
)

// sliceAPI notes when slices are deleted.
type sliceAPI struct {
	start time.Time
	fail  int // so often
	notes []string
}

func (*sliceAPI) ResourceClaim(context.Context, string, string) (*resourceapi.ResourceClaim, error) {
	return nil, errors.New("there is none")
}

func (a *sliceAPI) DeleteSlices(_ context.Context, driver string) error {
	a.notes = append(a.notes, fmt.Sprintf("%q after %v", driver, time.Since(a.start)))
	if a.fail > 0 {
		a.fail--
		return errors.New("no")
	}
	return nil
}

func TestSlicesOfDriversThatAreGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := &sliceAPI{start: time.Now(), fail: 2}
		w := newWiper(api, clock.RealClock{}, slog.New(slog.DiscardHandler))
		usable := map[string]bool{}
		var mu sync.Mutex
		w.usable = func(driver string) bool {
			mu.Lock()
			defer mu.Unlock()
			return usable[driver]
		}
		change := func(driver string, to bool) {
			mu.Lock()
			usable[driver] = to
			mu.Unlock()
			w.changed(driver)
			synctest.Wait()
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = w.run(ctx) })
		time.Sleep(10 * time.Second) // of the bubble: 0, 1 and 3 s
		change("d.test", true)
		change("e.test", false) // it has registered, and does not answer
		time.Sleep(20 * time.Second)
		change("d.test", false) // at 30 s
		time.Sleep(20 * time.Second)
		change("d.test", true) // back in time
		time.Sleep(time.Hour)
		change("d.test", false)
		time.Sleep(10 * time.Second)
		change("d.test", false) // the first time counts
		time.Sleep(time.Hour)
		cancel()
		running.Wait()
		if diff := cmp.Diff([]string{
			`"" after 0s`, `"" after 1s`, `"" after 3s`, `"e.test" after 40s`, `"d.test" after 1h1m20s`,
		}, api.notes); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
	})
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/mortise-dev/mortise/store"
)

func TestRecency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := recency{base: time.Now()}
		expect := func(want bool) {
			t.Helper()
			if r.within(store.MostLag) != want {
				t.Errorf("after %v, confirmed at %v: recent: %v", time.Since(r.base), time.Duration(r.last.Load()), !want)
			}
		}
		expect(true)
		begun := r.now()
		time.Sleep(store.MostLag) // by the clock of synctest
		expect(true)
		time.Sleep(time.Millisecond)
		expect(false)
		r.confirm(begun) // when it began counts, not when it ended
		expect(false)
		r.confirm(r.now())
		r.confirm(begun) // an earlier one changes nothing
		expect(true)
		time.Sleep(store.MostLag + 1)
		expect(false)
	})
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package watchcache

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestTrafficCountsSizes(t *testing.T) {
	var tr Traffic
	var s Sent
	for _, n := range []int{0, 1, 1024, 1025, 2048, 2049, 128 << 10, 128<<10 + 1, 5 << 20} {
		s.Note(n)
	}
	tr.Add(&s)
	s.Note(10)
	tr.Add(&s)
	tr.End()
	got, ended := tr.Total()
	want := Sent{Events: 10, Bytes: 1 + 1024 + 1025 + 2048 + 2049 + 128<<10 + 128<<10 + 1 + 5<<20 + 10,
		Sizes: [SizeClasses]int64{4, 2, 1, 0, 0, 0, 0, 1, 2}}
	if diff := cmp.Diff(want, got); diff != "" || ended != 1 {
		t.Errorf("%d ended (-want +got):\n%s", ended, diff)
	}
	if diff := cmp.Diff(Sent{}, s); diff != "" {
		t.Errorf("left behind: %s", diff)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestWhole(t *testing.T) {
	broken := errors.New("broken")
	for _, c := range []struct {
		name      string
		disturbed int // so often
		err, want error
		asked     int
	}{
		{name: "at once", asked: 1},
		{name: "disturbed twice", disturbed: 2, asked: 3},
		{name: "another error", err: broken, want: broken, asked: 1},
		{name: "disturbed for good", disturbed: 2 * tries, want: netlink.ErrDumpInterrupted, asked: tries},
	} {
		t.Run(c.name, func(t *testing.T) {
			asked := 0
			got, err := Whole(func() ([]int, error) {
				if asked++; asked <= c.disturbed {
					return []int{1}, netlink.ErrDumpInterrupted
				}
				return []int{1, 2}, c.err
			})
			if !errors.Is(err, c.want) || asked != c.asked || err == nil && !slices.Equal(got, []int{1, 2}) {
				t.Errorf("%v, %v after %d tries; want error %v after %d", got, err, asked, c.want, c.asked)
			}
		})
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// tries is the maximum number of attempts to read a list that changes meanwhile. On a node with many new pods that happens now and then.
const tries = 10

// Whole reads a list of links, routes or the like from the kernel. It reads again if the list has changed meanwhile (NLM_F_DUMP_INTR). If
// that happens each time, it returns the error with the last result.
func Whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range tries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

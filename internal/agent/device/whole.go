// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// tries is how often a list is read that others change meanwhile. A node on which pods come and go disturbs one now and then.
const tries = 10

// Whole is a list of the kernel's, of links or routes or the like, read again where the kernel says that it was changed while it was read
// (NLM_F_DUMP_INTR). If that is so each time, it is the error, with what was read last.
func Whole[T any](list func() ([]T, error)) (all []T, err error) {
	for range tries {
		if all, err = list(); !errors.Is(err, netlink.ErrDumpInterrupted) {
			break
		}
	}
	return all, err
}

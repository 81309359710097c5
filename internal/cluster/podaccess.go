// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"net"

	"github.com/mortise-dev/mortise/internal/node"
)

// podAccess lets pods of this machine reach a server that listens on loopback. The zero value is for other servers, and for machines
// without real containers.
type podAccess struct{ node.PodAccess }

// openPodAccess listens on the addresses for pods, with the port of a server on loopback, if real containers run on this machine.
func openPodAccess(ctx context.Context, s *settings, plan *node.Plan, server net.Listener) (podAccess, error) {
	if at := server.Addr().(*net.TCPAddr); !at.IP.IsLoopback() {
		return podAccess{}, nil
	}
	a, err := plan.OpenPodAccess(ctx, port(server), s.Logger.With("part", "apiserver"))
	if a == nil || err != nil {
		return podAccess{}, err
	}
	return podAccess{*a}, nil
}

// texts returns the addresses as text.
func (a *podAccess) texts() (out []string) {
	for _, ip := range a.Addresses {
		out = append(out, ip.String())
	}
	return out
}

// close closes the listeners and removes the addresses from the machine.
func (a *podAccess) close() error {
	if a.Remove == nil {
		return nil
	}
	var errs []error
	for _, l := range a.Listeners {
		if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, a.Remove())...)
}

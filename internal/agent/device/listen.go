// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Listen calls run with a channel that receives a value after changes of links, addresses or routes since the last receive. It returns when
// run does; it ends run when the kernel sends no more events.
func Listen(ctx context.Context, run func(context.Context, <-chan struct{}) error) error {
	socket, err := nl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR,
		unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
	if err != nil {
		return fmt.Errorf("subscribe to the kernel's network events: %w", err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	events := make(chan struct{}, 1)
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			// Events that were lost because we were too slow count as an event.
			if _, _, err := socket.Receive(); err != nil && !errors.Is(err, unix.ENOBUFS) && !errors.Is(err, unix.EINTR) {
				cancel(fmt.Errorf("read the kernel's network events: %w", err))
				return
			}
			select {
			case events <- struct{}{}:
			default:
			}
		}
	})
	err = run(ctx, events)
	if err == nil {
		err = context.Cause(ctx)
	}
	socket.Close()
	reading.Wait()
	return err
}

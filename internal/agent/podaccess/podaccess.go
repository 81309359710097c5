// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package podaccess gives servers that would listen on loopback an address that the pods of this machine reach, and the machine
// itself, but not its network. The API server of a cluster whose --listen is a loopback address listens there as well, and the
// Service "kubernetes" leads there; the node's API listens there alone.
//
// The addresses ([Addresses]) are the first of the pod ranges, which no pod ever gets: usually the bridge has them, too, as the
// gateway of the pods. [Open] gives them to a network device of its own, so that they exist before the first pod, and before there is
// a bridge. Packets reach an address of this machine by any of its interfaces, so a neighbour could still connect by a route that it
// makes itself; [Listen] closes such a connection before it reads from it. What it takes are connections
//
//   - from an address of this machine,
//   - from the pod ranges, and
//   - where another CNI plug-in than ours gives pods their addresses, from those that the kernel reaches by a bridge, a veth device or
//     a tunnel that is not the way to a gateway.
//
// No address authenticates a client: that is done by TLS and the API.
package podaccess

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"

	"github.com/mortise-dev/mortise/internal/agent/device"
)

// deviceName is the network device's that has the addresses.
const deviceName = "mortise-api"

// Addresses returns the first usable address of each pod range.
func Addresses(pods []netip.Prefix) []netip.Addr {
	out := make([]netip.Addr, 0, len(pods))
	for _, p := range pods {
		out = append(out, p.Masked().Addr().Next())
	}
	return out
}

// Open gives the addresses to this machine. It wants root.
func Open(addresses []netip.Addr) error { return device.AddDummy(deviceName, addresses) }

// Remove removes the device with its addresses, if it exists.
func Remove() error { return device.Remove(deviceName) }

// Filter decides which connections a [Listen]er accepts.
type Filter struct {
	// Pods are the ranges of pods' addresses.
	Pods []netip.Prefix
	// Foreign reports whether another CNI plug-in gives pods addresses of ranges that are not known here; nil: never.
	Foreign func() bool
	// Logger gets a debug line for each connection that is closed; nil: none.
	Logger *slog.Logger
}

// Listen listens on a port of each of the addresses. Port 0 is a free one, the same for all.
func Listen(ctx context.Context, addresses []netip.Addr, port int, f Filter) (_ []net.Listener, err error) {
	var out []net.Listener
	defer func() {
		if err != nil {
			for _, l := range out {
				_ = l.Close()
			}
		}
	}()
	config := net.ListenConfig{Control: device.FreeBind}
	for _, a := range addresses {
		l, err := config.Listen(ctx, "tcp", netip.AddrPortFrom(a, uint16(port)).String())
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			return nil, fmt.Errorf("listen for pods on %s: the port is taken by another process", net.JoinHostPort(a.String(), strconv.Itoa(port)))
		case err != nil:
			return nil, fmt.Errorf("listen for pods: %w", err)
		}
		port = l.Addr().(*net.TCPAddr).Port
		out = append(out, f.Only(l))
	}
	return out, nil
}

// Only returns a listener that accepts the connections that the filter admits, and closes the others.
func (f Filter) Only(l net.Listener) net.Listener {
	if f.Logger == nil {
		f.Logger = slog.New(slog.DiscardHandler)
	}
	return &listener{Listener: l, filter: f}
}

type listener struct {
	net.Listener
	filter Filter
}

// Accept implements net.Listener. It closes the connections that the filter refuses, and waits for the next.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from, ok := c.RemoteAddr().(*net.TCPAddr)
		if ok && l.filter.admits(from.AddrPort().Addr().Unmap().WithZone("")) {
			return c, nil
		}
		l.filter.Logger.Debug("Closed a connection that is neither from a pod nor from this machine", "remoteAddress", c.RemoteAddr(),
			"localAddress", c.LocalAddr())
		_ = c.Close()
	}
}

func (f *Filter) admits(from netip.Addr) bool {
	inRange := func(p netip.Prefix) bool { return p.Contains(from) }
	return from.IsLoopback() || slices.ContainsFunc(f.Pods, inRange) || ofMachine(from) || f.Foreign != nil && f.Foreign() && byPodLink(from)
}

// ofMachine reports whether an address is one of this machine's.
func ofMachine(a netip.Addr) bool {
	addresses, err := net.InterfaceAddrs()
	return err == nil && slices.ContainsFunc(addresses, func(has net.Addr) bool {
		p, err := netip.ParsePrefix(has.String())
		return err == nil && p.Addr().Unmap() == a
	})
}

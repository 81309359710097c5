// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/nodeapi"
)

// addressRange is the range of nodes' addresses, one for each. All of 127.0.0.0/8 belongs to this machine, without any set-up, and no other
// machine can reach it; the half that begins here is otherwise unused.
var addressRange = netip.MustParsePrefix("127.128.0.0/9")

// nodeAddresses allocates the addresses of nodes: the first ones to the nodes of groups, in order, the others to guests.
type nodeAddresses struct {
	mu    sync.Mutex
	own   int // nodes of groups
	taken map[netip.Addr]bool
	next  netip.Addr
}

// addressOf returns the address of the index-th node of all groups.
func addressOf(index int) netip.Addr { return offset(addressRange.Addr(), uint64(index)+1, 0) }

// takeFor returns an address for a guest: the one in its object from before a restart, unless another guest has it.
func (a *nodeAddresses) takeFor(object *corev1.Node) netip.Addr {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.taken == nil {
		a.taken, a.next = map[netip.Addr]bool{}, addressOf(a.own)
	}
	for _, have := range object.Status.Addresses {
		ip, err := netip.ParseAddr(have.Address)
		if err == nil && addressRange.Contains(ip) && addressOf(a.own).Compare(ip) <= 0 && !a.taken[ip] {
			a.taken[ip] = true
			return ip
		}
	}
	for a.taken[a.next] || !addressRange.Contains(a.next) {
		if a.next = a.next.Next(); !addressRange.Contains(a.next) {
			a.next = addressOf(a.own)
		}
	}
	a.taken[a.next] = true
	return a.next
}

func (a *nodeAddresses) release(address netip.Addr) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.taken, address)
}

// at returns the node with the address, or nil.
func (f *fleet) at(local net.Addr) nodeapi.Node {
	if f.o.Alone != "" {
		return view{f, f.nodes.get(f.o.Alone)}
	}
	tcp, ok := local.(*net.TCPAddr)
	if !ok {
		return nil
	}
	if n := f.nodes.having(tcp.AddrPort().Addr().Unmap()); n != nil {
		return view{f, n}
	}
	return nil
}

// kubeletPort is the usual port of a node's API.
const kubeletPort = 10250

// Listen opens the listener of the APIs of nodes in this process: on all their addresses, on port 10250 if that is free. It refuses
// connections from other machines.
func Listen(ctx context.Context) (net.Listener, error) {
	var lc net.ListenConfig
	lc.Control = onLoopback
	l, err := lc.Listen(ctx, "tcp4", net.JoinHostPort("0.0.0.0", strconv.Itoa(kubeletPort)))
	if errors.Is(err, syscall.EADDRINUSE) {
		l, err = lc.Listen(ctx, "tcp4", "0.0.0.0:0")
	}
	if err != nil {
		return nil, fmt.Errorf("listen for the simulated nodes' API: %w", err)
	}
	return loopback{l}, nil
}

// loopback accepts only connections to loopback addresses, which other machines cannot make.
type loopback struct{ net.Listener }

// Accept implements [net.Listener].
func (l loopback) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if tcp, ok := c.LocalAddr().(*net.TCPAddr); ok && tcp.IP.IsLoopback() {
			return c, nil
		}
		_ = c.Close()
	}
}

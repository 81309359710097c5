// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"fmt"
	"math/bits"
	"net/netip"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// cut divides a CIDR into n equal subnets: /24s (IPv6: /64s) if there are enough, otherwise smaller ones with at least 16 addresses.
func cut(cidr string, n int) ([]netip.Prefix, error) {
	p, err := netip.ParsePrefix(cidr)
	if err != nil {
		return nil, fmt.Errorf("read pod CIDR: %w", err)
	}
	p = p.Masked()
	all, want := p.Addr().BitLen(), 24
	if p.Addr().Is6() {
		want = 64
	}
	size := max(p.Bits()+bits.Len(uint(n-1)), min(want, all-4))
	if size > all-4 {
		return nil, fmt.Errorf("cut pod CIDR: %s is too small for %d nodes", cidr, n)
	}
	out := make([]netip.Prefix, n)
	for i := range out {
		out[i] = netip.PrefixFrom(offset(p.Addr(), uint64(i), all-size), size)
	}
	return out, nil
}

// offset adds n << shift to an address.
func offset(a netip.Addr, n uint64, shift int) netip.Addr {
	b := a.AsSlice()
	for i := 0; n != 0 && i < 64; i++ { // bit by bit, with carry: n is small
		if n&1 != 0 {
			bit := shift + i
			carry := uint16(1) << (bit % 8)
			for at := len(b) - 1 - bit/8; at >= 0 && carry != 0; at-- {
				sum := uint16(b[at]) + carry
				b[at], carry = byte(sum), sum>>8
			}
		}
		n >>= 1
	}
	out, _ := netip.AddrFromSlice(b)
	return out
}

// pool allocates a node's addresses. The first two and the last belong to the network.
type pool struct {
	mu     sync.Mutex
	prefix netip.Prefix
	next   netip.Addr
	by     map[types.UID]netip.Addr
	used   map[netip.Addr]types.UID
}

func newPool(p netip.Prefix) *pool {
	return &pool{prefix: p, next: offset(p.Addr(), 2, 0), by: map[types.UID]netip.Addr{}, used: map[netip.Addr]types.UID{}}
}

// cidr returns the subnet of the pool.
func (p *pool) cidr() netip.Prefix {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.prefix
}

// move replaces the subnet, before the pool has allocated an address.
func (p *pool) move(to netip.Prefix) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.prefix, p.next = to, offset(to.Addr(), 2, 0)
}

// take returns the pod's address, always the same one.
func (p *pool) take(uid types.UID) (netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, ok := p.by[uid]; ok {
		return a, nil
	}
	first := offset(p.prefix.Addr(), 2, 0)
	for range len(p.used) + 2 {
		a := p.next
		if p.next = a.Next(); !p.prefix.Contains(p.next) || !p.prefix.Contains(p.next.Next()) {
			p.next = first
		}
		if _, taken := p.used[a]; !taken {
			p.by[uid], p.used[a] = a, uid
			return a, nil
		}
	}
	return netip.Addr{}, fmt.Errorf("take pod address: all of %s are in use", p.prefix)
}

// claim records the existing address of a pod, unless another pod has it.
func (p *pool) claim(uid types.UID, text string) {
	a, err := netip.ParseAddr(text)
	if err != nil || !p.prefix.Contains(a) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if _, taken := p.used[a]; !taken {
		if old, has := p.by[uid]; has {
			delete(p.used, old)
		}
		p.by[uid], p.used[a] = a, uid
	}
}

// release frees the pod's address.
func (p *pool) release(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a, ok := p.by[uid]; ok {
		delete(p.by, uid)
		delete(p.used, a)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"fmt"
	"math/big"
	"net/netip"
)

// pool allocates the subnets of one range, each to one node. It continues after the last subnet that it allocated, so that it does not
// reuse a released subnet at once.
type pool struct {
	cluster netip.Prefix
	bits    int // the prefix length of a subnet
	size    int
	next    int
	taken   map[int]string
}

// most bounds the subnets of a pool, as upstream does.
const most = 1 << 16

func newPool(cluster netip.Prefix, bits int) (*pool, error) {
	if bits < cluster.Bits() || bits > cluster.Addr().BitLen() {
		return nil, fmt.Errorf("node mask /%d does not fit in %s", bits, cluster)
	}
	if bits-cluster.Bits() > 16 {
		return nil, fmt.Errorf("node mask /%d cuts %s into more than %d subnets", bits, cluster, most)
	}
	return &pool{cluster: cluster.Masked(), bits: bits, size: 1 << (bits - cluster.Bits()), taken: map[int]string{}}, nil
}

// subnet returns the i-th subnet.
func (p *pool) subnet(i int) netip.Prefix {
	base := new(big.Int).SetBytes(p.cluster.Addr().AsSlice())
	offset := new(big.Int).Lsh(big.NewInt(int64(i)), uint(p.cluster.Addr().BitLen()-p.bits))
	raw := base.Add(base, offset).FillBytes(make([]byte, p.cluster.Addr().BitLen()/8))
	addr, _ := netip.AddrFromSlice(raw)
	return netip.PrefixFrom(addr, p.bits)
}

// take allocates a subnet for node; false if none is free.
func (p *pool) take(node string) (netip.Prefix, bool) {
	for range p.size {
		i := p.next
		p.next = (p.next + 1) % p.size
		if _, ok := p.taken[i]; !ok {
			p.taken[i] = node
			return p.subnet(i), true
		}
	}
	return netip.Prefix{}, false
}

// index returns the number of the subnet that contains prefix; -1 if prefix is outside the range.
func (p *pool) index(prefix netip.Prefix) int {
	if !p.cluster.Contains(prefix.Addr()) || prefix.Bits() < p.bits {
		return -1
	}
	offset := new(big.Int).SetBytes(prefix.Addr().AsSlice())
	offset.Sub(offset, new(big.Int).SetBytes(p.cluster.Addr().AsSlice()))
	return int(offset.Rsh(offset, uint(p.cluster.Addr().BitLen()-p.bits)).Int64())
}

// occupy records that node has prefix, whether or not the pool allocated it.
func (p *pool) occupy(prefix netip.Prefix, node string) {
	if i := p.index(prefix); i >= 0 {
		if _, ok := p.taken[i]; !ok {
			p.taken[i] = node
		}
	}
}

// release frees prefix if node has it.
func (p *pool) release(prefix netip.Prefix, node string) {
	if i := p.index(prefix); i >= 0 && p.taken[i] == node {
		delete(p.taken, i)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodeipam

import (
	"fmt"
	"math/big"
	"net/netip"
)

// pool hands out the subnets of one range, each to one node. It gives the one after the last that it gave, so that a
// range that was freed is not reused at once.
type pool struct {
	cluster netip.Prefix
	bits    int // length of a node's prefix
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

// subnet is the i-th.
func (p *pool) subnet(i int) netip.Prefix {
	base := new(big.Int).SetBytes(p.cluster.Addr().AsSlice())
	offset := new(big.Int).Lsh(big.NewInt(int64(i)), uint(p.cluster.Addr().BitLen()-p.bits))
	raw := base.Add(base, offset).FillBytes(make([]byte, p.cluster.Addr().BitLen()/8))
	addr, _ := netip.AddrFromSlice(raw)
	return netip.PrefixFrom(addr, p.bits)
}

// take gives node a subnet; false when there is none.
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

// index is the number of the subnet that prefix is or lies in; -1 when it is of another range.
func (p *pool) index(prefix netip.Prefix) int {
	if !p.cluster.Contains(prefix.Addr()) || prefix.Bits() < p.bits {
		return -1
	}
	offset := new(big.Int).SetBytes(prefix.Addr().AsSlice())
	offset.Sub(offset, new(big.Int).SetBytes(p.cluster.Addr().AsSlice()))
	return int(offset.Rsh(offset, uint(p.cluster.Addr().BitLen()-p.bits)).Int64())
}

// occupy notes that node has prefix, however it came by it.
func (p *pool) occupy(prefix netip.Prefix, node string) {
	if i := p.index(prefix); i >= 0 {
		if _, ok := p.taken[i]; !ok {
			p.taken[i] = node
		}
	}
}

// release frees prefix, if it is node's.
func (p *pool) release(prefix netip.Prefix, node string) {
	if i := p.index(prefix); i >= 0 && p.taken[i] == node {
		delete(p.taken, i)
	}
}

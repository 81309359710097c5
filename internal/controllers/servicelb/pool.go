// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package servicelb

import (
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// span is a range of addresses of one family, both ends included.
type span struct{ first, last netip.Addr }

// pool is a list of ranges of addresses.
type pool []span

// documentation are the addresses of Services on simulated nodes: those kept for documentation (RFC 5737, RFC 3849), which lead nowhere,
// and when they are used up those kept for benchmarks (RFC 2544).
var documentation = pool{
	mustSpan("192.0.2.1-192.0.2.254"), mustSpan("198.51.100.1-198.51.100.254"), mustSpan("203.0.113.1-203.0.113.254"),
	mustSpan("198.18.0.1-198.19.255.254"), mustSpan("2001:db8::1-2001:db8::ffff:ffff"),
}

// maxSpans bounds the number of ranges of a pool.
const maxSpans = 256

// parseSpan parses a CIDR, of which all addresses count, a range FIRST-LAST, or one address.
func parseSpan(text string) (s span, err error) {
	invalid := fmt.Errorf("load-balancer pool %q: want a CIDR, a range FIRST-LAST, or an address", text)
	if first, last, ok := strings.Cut(text, "-"); ok {
		a, err1 := netip.ParseAddr(strings.TrimSpace(first))
		z, err2 := netip.ParseAddr(strings.TrimSpace(last))
		s = span{a.Unmap(), z.Unmap()}
		if err1 != nil || err2 != nil || s.first.Is4() != s.last.Is4() || s.last.Less(s.first) {
			return s, invalid
		}
	} else if p, err := netip.ParsePrefix(text); err == nil {
		if p != p.Masked() || p.Addr().Is4In6() {
			return s, invalid
		}
		s = span{p.Addr(), lastOf(p)}
	} else if a, err := netip.ParseAddr(text); err == nil {
		s = span{a.Unmap(), a.Unmap()}
	} else {
		return s, invalid
	}
	for _, a := range []netip.Addr{s.first, s.last} {
		if a.Zone() != "" || !a.IsGlobalUnicast() {
			return s, fmt.Errorf("load-balancer pool %q: %s is not a unicast address that a network routes", text, a)
		}
	}
	return s, nil
}

func mustSpan(text string) span {
	s, err := parseSpan(text)
	if err != nil {
		panic(err)
	}
	return s
}

// lastOf returns the last address of a prefix.
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for i := p.Bits(); i < 8*len(b); i++ {
		b[i/8] |= 1 << (7 - i%8)
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}

func (p pool) empty() bool { return len(p) == 0 }

// has reports whether an address is in the pool.
func (p pool) has(a netip.Addr) bool {
	return slices.ContainsFunc(p, func(s span) bool { return s.first.Is4() == a.Is4() && !a.Less(s.first) && !s.last.Less(a) })
}

// all returns the pool's addresses of a family, in order.
func (p pool) all(f corev1.IPFamily) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for _, s := range p {
			if familyOf(s.first) != f {
				continue
			}
			for a := s.first; a.IsValid() && !s.last.Less(a); a = a.Next() {
				if !yield(a) {
					return
				}
			}
		}
	}
}

// String returns the pool as the flag takes it.
func (p *pool) String() string {
	if p == nil {
		return ""
	}
	return strings.Join(p.GetSlice(), ",")
}

// Type implements [pflag.Value].
func (p *pool) Type() string { return "strings" }

// Set implements [pflag.Value]: it replaces the ranges by those of a list behind commas.
func (p *pool) Set(text string) error {
	var list []string
	if text != "" {
		list = strings.Split(text, ",")
	}
	return p.Replace(list)
}

// Replace implements pflag.SliceValue.
func (p *pool) Replace(list []string) error {
	var out pool
	for _, text := range list {
		s, err := parseSpan(strings.TrimSpace(text))
		if err != nil {
			return err
		}
		out = append(out, s)
	}
	if len(out) > maxSpans {
		return fmt.Errorf("load-balancer pool: %d ranges, want %d at most", len(out), maxSpans)
	}
	*p = out
	return nil
}

// Append implements pflag.SliceValue.
func (p *pool) Append(text string) error { return p.Replace(append(p.GetSlice(), text)) }

// GetSlice implements pflag.SliceValue.
func (p *pool) GetSlice() (out []string) {
	for _, s := range *p {
		if s.first == s.last {
			out = append(out, s.first.String())
			continue
		}
		out = append(out, s.first.String()+"-"+s.last.String())
	}
	return out
}

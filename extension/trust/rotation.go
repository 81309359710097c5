// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package trust

import (
	"bytes"
	"slices"
	"time"
)

// Bundle has the certificates of one server.
type Bundle struct {
	Current *Pair // that is shown; nil: none yet
	Next    *Pair // that will be; nil: none
	// Trusted are the authorities that callers trust, in PEM, one after the other.
	Trusted []byte
}

// Times of a rotation.
type Times struct {
	Life   time.Duration // of a certificate
	Renew  time.Duration // how long before its end the next one is made
	Settle time.Duration // how long an authority is trusted before its certificate is shown
	Keep   time.Duration // how long the old authority is trusted after that
}

// Default are certificates of 90 days, renewed 30 days before they end: a day passes until the new one is shown, and another until the
// old one is trusted no more, so that servers that read their files seldom have time.
func Default() Times {
	const day = 24 * time.Hour
	return Times{Life: 90 * day, Renew: 30 * day, Settle: day, Keep: day}
}

// Turn returns the current bundle of a server of these hosts, and when to call it again. issue makes a pair.
//
// Worked example, with the times of [Default]: on day 0 there is nothing: pair A is made and served, its CA trusted. Day
// 60: pair B is made and kept; both CAs are trusted. Day 61: B is served. Day 62: A's CA is no longer trusted. Day 120: as
// day 60. An unusable pair (expired, other hosts, damaged) is replaced immediately.
func (b Bundle) Turn(hosts []string, now time.Time, t Times, issue func() (*Pair, error)) (Bundle, time.Time, error) {
	if !b.Current.good(hosts, now) {
		if b.Next.good(hosts, now) {
			b.Current, b.Next = b.Next, nil
		} else {
			p, err := issue()
			if err != nil {
				return b, time.Time{}, err
			}
			b.Current, b.Next = p, nil
		}
	}
	leaf, err := b.Current.leaf()
	if err != nil {
		return b, time.Time{}, err
	}
	renew := leaf.NotAfter.Add(-t.Renew)
	if b.Next != nil && !b.Next.good(hosts, now) {
		b.Next = nil
	}
	if b.Next == nil && !now.Before(renew) {
		if b.Next, err = issue(); err != nil {
			return b, time.Time{}, err
		}
	}
	if b.Next != nil && !now.Before(b.Next.begun().Add(t.Settle)) {
		b.Current, b.Next = b.Next, nil
		if leaf, err = b.Current.leaf(); err != nil {
			return b, time.Time{}, err
		}
		renew = leaf.NotAfter.Add(-t.Renew)
	}
	again := renew
	if b.Next != nil {
		again = b.Next.begun().Add(t.Settle)
	}
	drop := b.Current.begun().Add(t.Settle + t.Keep)
	before := b.Trusted
	b.Trusted = bytes.Join(authorities(b.Current.Authority), nil)
	if b.Next != nil {
		b.Trusted = append(b.Trusted, b.Next.Authority...)
	}
	if now.Before(drop) { // the previous one may still be served
		kept := authorities(b.Trusted)
		for _, a := range authorities(before) {
			if !slices.ContainsFunc(kept, func(k []byte) bool { return bytes.Equal(k, a) }) {
				b.Trusted = append(b.Trusted, a...)
				if drop.Before(again) {
					again = drop
				}
			}
		}
	}
	return b, again, nil
}

// Read decodes the bundle in these files, without damaged parts. The CA of each pair is the one of the trusted CAs that
// signed it.
func Read(cert, key, nextCert, nextKey, trusted []byte) Bundle {
	b := Bundle{Trusted: bytes.Join(authorities(trusted), nil)}
	pair := func(cert, key []byte) *Pair {
		for _, a := range authorities(trusted) {
			p := &Pair{Cert: cert, Key: key, Authority: a}
			if _, err := p.leaf(); err == nil {
				return p
			}
		}
		return nil
	}
	b.Current, b.Next = pair(cert, key), pair(nextCert, nextKey)
	return b
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package etcd

import "time"

// stallTime is how long readers may wait for a watch that delivers nothing before the mirror begins another one, on another member. If that
// delivers nothing either, it gets twice as long, at most stallMost: the first answer of a watch that begins far back has up to a thousand
// revisions, which take long on a slow network.
const stallTime, stallMost = 2 * time.Second, time.Minute

// patience decides when a watch is given up. The zero value is ready to use.
type patience struct {
	limit time.Duration // 0: stallTime
	last  time.Time     // when the watch began, or delivered something
}

// begun notes that a watch begins.
func (p *patience) begun(now time.Time) { p.last = now }

// heard notes that it has delivered changes, or how far it is.
func (p *patience) heard(now time.Time) { p.last, p.limit = now, stallTime }

// over reports whether readers that wait since a time give up the watch. If so, the next one gets longer.
func (p *patience) over(now, since time.Time) bool {
	limit := max(p.limit, stallTime)
	if now.Sub(since) <= limit || now.Sub(p.last) <= limit {
		return false
	}
	p.limit = min(2*limit, stallMost)
	return true
}

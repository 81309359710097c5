// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package flowcontrol

import (
	"math"
	"slices"
	"time"
)

// smoothing is the weight of a level's previous demand at each adjustment: half of it remains after five minutes.
const smoothing = 0.977

// lend computes the current seats of each level. The caller holds the controller's mutex.
//
// A level that may not lend keeps its nominal seats. The seats that other levels did not use go to levels that could
// have used more, in proportion to their recent demand. The seats of exempt requests are subtracted first.
func (c *Controller) lend(now time.Time, levels map[string]*level) {
	var limited []*level
	var items []claim
	left, leastSum, floorSum := c.nominal, 0, 0
	for _, l := range levels {
		l.mu.Lock()
		l.wanted = l.set.Demanded(now)
		l.mu.Unlock()
		if l.wanted.Seconds > 0 {
			envelope := l.wanted.Average + l.wanted.Deviation
			l.smoothed = max(envelope, smoothing*l.smoothed+(1-smoothing)*envelope)
		}
		high := int(math.Round(l.wanted.High))
		if l.exempt {
			l.current = max(l.least, high)
			l.target = 0
			left -= l.current
			continue
		}
		floor := max(l.least, min(l.nominal, high))
		l.target = max(float64(floor), l.smoothed)
		limited = append(limited, l)
		items = append(items, claim{target: l.target, low: float64(floor), high: float64(l.most)})
		leastSum += l.least
		floorSum += floor
	}
	c.fair = 0
	switch {
	case left <= leastSum:
		for _, l := range limited {
			l.current = l.least
		}
	case left <= floorSum:
		part := float64(left-leastSum) / float64(floorSum-leastSum)
		for i, l := range limited {
			l.current = l.least + int(math.Round((items[i].low-float64(l.least))*part))
		}
	default:
		if shares, proportion, ok := allocate(float64(c.nominal), items); ok {
			c.fair = proportion
			for i, l := range limited {
				l.current = int(math.Round(shares[i]))
			}
		}
	}
	for _, l := range levels {
		of := l.current
		if of <= 0 {
			of = max(1, int(math.Round(float64(c.o.Seats)/10)))
		}
		l.mu.Lock()
		l.set.Limit(now, l.current, of)
		l.mu.Unlock()
	}
}

// claim is a level's minimum, maximum and target number of seats.
type claim struct{ target, low, high float64 }

// minTarget replaces smaller targets, because the algorithm divides by targets.
const minTarget = 0.001

// allocate divides sum among claims, in proportion to their targets within their bounds. It reports false if the bounds
// allow no division, or if it finds none.
func allocate(sum float64, claims []claim) (shares []float64, proportion float64, ok bool) {
	const hair = 1e-7
	var low, high float64
	var edges []float64
	for i := range claims {
		c := &claims[i]
		if c.low < 0 || c.target < c.low || c.high < c.low {
			return nil, 0, false
		}
		c.target = max(c.target, minTarget)
		low += c.low
		high += c.high
		edges = append(edges, c.low/c.target, c.high/c.target)
	}
	if sum < 0 || low-sum > hair || sum-high > hair {
		return nil, 0, false
	}
	at := func(p float64) (total float64) {
		for _, c := range claims {
			total += c.at(p)
		}
		return total
	}
	// the total is piecewise linear in the proportion: find the two edges that sum lies between
	slices.Sort(edges)
	i, _ := slices.BinarySearchFunc(edges, sum, func(p, want float64) int {
		if at(p) < want {
			return -1
		}
		return 1
	})
	switch {
	case len(edges) == 0:
	case i == len(edges):
		proportion = edges[i-1]
	case i == 0:
		proportion = edges[0]
	default:
		a, b := edges[i-1], edges[i]
		from, to := at(a), at(b)
		proportion = b
		if to > from {
			proportion = a + (b-a)*(sum-from)/(to-from)
		}
	}
	for _, c := range claims {
		shares = append(shares, c.at(proportion))
	}
	return shares, proportion, true
}

func (c claim) at(p float64) float64 { return max(c.low, min(c.high, p*c.target)) }

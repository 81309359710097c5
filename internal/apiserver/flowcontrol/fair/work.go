// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"fmt"
	"math"
	"time"
)

// Work is the estimated cost of a request: seats while it is served, and others for a while after it.
type Work struct {
	Initial, Final int
	Linger         time.Duration
}

// Seats is the number of seats that a request holds.
func (w Work) Seats() int { return max(w.Initial, w.Final) }

// SeatSeconds measure work and virtual time: so many seats held for so long, in units of a hundred-millionth.
type SeatSeconds int64

const scale = 1e8

// Times is the work of holding seats for some time.
func Times(seats float64, d time.Duration) SeatSeconds {
	return SeatSeconds(math.Round(seats * float64(d) / (1e9 / scale)))
}

// Per is the time for which seats are held for the work.
func (s SeatSeconds) Per(seats int) time.Duration {
	return time.Duration(float64(s) / float64(seats) * (float64(time.Second) / scale))
}

// Float is in seat-seconds.
func (s SeatSeconds) Float() float64 { return float64(s) / scale }

// String formats it for dumps.
func (s SeatSeconds) String() string { return fmt.Sprintf("%d.%08dss", s/scale, s%scale) }

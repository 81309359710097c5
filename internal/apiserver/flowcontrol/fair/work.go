// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"fmt"
	"math"
	"time"
)

// Work is what a request is taken to cost: seats while it is answered, and others for a while after it.
type Work struct {
	Initial, Final int
	Linger         time.Duration
}

// Seats is how many a request holds from beginning to end.
func (w Work) Seats() int { return max(w.Initial, w.Final) }

// SeatSeconds measure work and virtual time: so many seats held for so long, in units of a hundred-millionth.
type SeatSeconds int64

const scale = 1e8

// Times is the work of holding seats for some time.
func Times(seats float64, d time.Duration) SeatSeconds {
	return SeatSeconds(math.Round(seats * float64(d) / (1e9 / scale)))
}

// Per is how long seats are held for the work.
func (s SeatSeconds) Per(seats int) time.Duration {
	return time.Duration(float64(s) / float64(seats) * (float64(time.Second) / scale))
}

// Float is in seat-seconds.
func (s SeatSeconds) Float() float64 { return float64(s) / scale }

// String is what dumps show.
func (s SeatSeconds) String() string { return fmt.Sprintf("%d.%08dss", s/scale, s%scale) }

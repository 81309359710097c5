// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"fmt"
	"math"
	"time"
)

// Work is the estimated cost of a request: its seats while it runs, and its seats for a while afterwards.
type Work struct {
	Initial, Final int
	Linger         time.Duration
}

// Seats is the number of seats that a request holds.
func (w Work) Seats() int { return max(w.Initial, w.Final) }

// SeatSeconds measures work and virtual time: a number of seats held for some time, in units of a hundred-millionth of
// a seat-second.
type SeatSeconds int64

const scale = 1e8

// Times returns the work of holding seats for some time.
func Times(seats float64, d time.Duration) SeatSeconds {
	return SeatSeconds(math.Round(seats * float64(d) / (1e9 / scale)))
}

// Per returns the time for which a number of seats is held for the work.
func (s SeatSeconds) Per(seats int) time.Duration {
	return time.Duration(float64(s) / float64(seats) * (float64(time.Second) / scale))
}

// Float returns the value in seat-seconds.
func (s SeatSeconds) Float() float64 { return float64(s) / scale }

// String formats the value for dumps.
func (s SeatSeconds) String() string { return fmt.Sprintf("%d.%08dss", s/scale, s%scale) }

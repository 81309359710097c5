// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"math"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"testing"
	"time"
)

func TestPercent(t *testing.T) {
	const mb = 1 << 20
	for _, c := range []struct {
		live, made, together uint64
		took                 time.Duration
		want                 int
	}{
		{60 * mb, 60 * mb, room, time.Second, 400},
		{60 * mb, 60 * mb, 180 * mb, time.Second, 200},
		{60 * mb, 60 * mb, 40 * mb, time.Second, 100}, // not less than by default
		{60 * mb, 60 * mb, room, time.Minute, 100},    // hardly anything is made
		{60 * mb, 59 * mb, room, time.Second, 100},    // less than one collection a second at the default rate
		{60 * mb, 600 * mb, room, time.Second, 400},   // 300 MB together and no more
		{128 * mb, 128 * mb, 40 * mb, time.Second, 100},
		{256 * mb, 256 * mb, room, time.Second, 50}, // much lives: less of it waits
		{256 * mb, 256 * mb, room, time.Minute, 50},
		{1000 * mb, 1000 * mb, room, time.Second, 25},
		{200 * mb, 2000 * mb, room, time.Second, 64},
		{10 * mb, 10 * mb, room, 100 * time.Millisecond, 2900},
		{0, 1, room, time.Second, 100},
		{1, 1, room, 0, 100},
	} {
		if got := percent(c.live, c.made, c.together, c.took); got != c.want {
			t.Errorf("%d MB live, %d MB made in %v, %d MB together: %d, want %d", c.live/mb, c.made/mb, c.took, c.together/mb, got, c.want)
		}
	}
}

// TestRoomGrowsWithWork makes 100 MB a second: after a burst of three seconds, little garbage may wait, and after half a minute as much as
// ever. A minute later it is little again.
func TestRoomGrowsWithWork(t *testing.T) {
	const mb = 1 << 20
	var lately work
	for i := 1; i <= 30; i++ {
		switch got := lately.and(100*mb, time.Second); {
		case i <= 3 && got > 100*mb:
			t.Errorf("after %d s of work: %d MB", i, got/mb)
		case i >= 20 && got != room:
			t.Errorf("after %d s of work: %d MB, want %d", i, got/mb, room/mb)
		}
	}
	if got := lately.and(0, time.Minute); got > 40*mb {
		t.Errorf("a minute after it: %d MB", got/mb)
	}
}

func TestSustained(t *testing.T) {
	last := sustained(usual)
	for i, c := range []struct{ percent, want int }{
		{400, usual}, // the first of a burst
		{300, 300},
		{500, 500},
		{usual, usual}, // it is over
		{400, usual},
	} {
		if got := last.and(c.percent); got != c.want {
			t.Errorf("collection %d: %d, want %d", i, got, c.want)
		}
	}
}

func TestOutdated(t *testing.T) {
	for _, c := range []struct {
		now, want     int
		limited, live uint64
		is            bool
	}{
		{usual, usual, 0, 100, false}, // no limit is set
		{usual, 124, 0, 100, false},
		{usual, 126, 0, 100, true},
		{400, 390, 100, 120, false},
		{400, 300, 100, 100, true},
		{102, usual, 100, 120, false},
		{102, usual, 100, 130, true}, // the heap has outgrown the limit
		{400, 400, 100, 130, true},
		{50, 45, 100, 130, false},
		{50, 25, 100, 260, true},
	} {
		if got := outdated(c.now, c.want, c.limited, c.live); got != c.is {
			t.Errorf("%d %% set for %d bytes, %d %% wanted for %d: outdated is %t", c.now, c.limited, c.want, c.live, got)
		}
	}
}

func TestLimit(t *testing.T) {
	const mb, none = 1 << 20, math.MaxInt64
	for _, c := range []struct {
		percent    int
		live, held uint64
		given      int64
		want       int64
	}{
		{400, 60 * mb, 100 * mb, none, 460 * mb},
		{usual, 60 * mb, 100 * mb, none, none},
		{usual, 60 * mb, 100 * mb, 80 * mb, 80 * mb},
		{25, 600 * mb, 700 * mb, none, none},
		{400, 60 * mb, 100 * mb, 200 * mb, 200 * mb}, // GOMEMLIMIT holds
		{400, math.MaxUint64 / 1600, math.MaxUint64 / 2, none, none},
	} {
		if got := limit(c.percent, c.live, c.held, c.given); got != c.want {
			t.Errorf("%d %% of %d MB live, %d MB held, %d given: %d, want %d", c.percent, c.live/mb, c.held/mb, c.given, got, c.want)
		}
	}
}

// TestPacedBurst makes little at first, so that much of it may wait, and then ten times as much lives: what waits does not grow with it.
func TestPacedBurst(t *testing.T) {
	if os.Getenv("MORTISE_TEST_PACE") == "" { // in a process of its own: how it collects is for all of it
		c := exec.Command(os.Args[0], "-test.run=^TestPacedBurst$", "-test.v")
		c.Env = append(os.Environ(), "MORTISE_TEST_PACE=1")
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	const mb = 1 << 20
	runtime.GC()
	live, _ := heap()
	now := percent(live, 1<<40, room, time.Second)
	if now < 1000 {
		t.Fatalf("%d %% may wait of %d bytes that live", now, live)
	}
	bound := limit(now, live, held(), math.MaxInt64)
	debug.SetMemoryLimit(bound)
	debug.SetGCPercent(now)
	var lives [][]byte
	for range 150 {
		lives = append(lives, make([]byte, mb))
	}
	for range 4096 {
		burst = make([]byte, mb)
	}
	// without a bound it would be ten times what lives; a collection that does not get its processor in time ends late
	if h := held(); h > uint64(bound)*2 {
		t.Errorf("%d MB are held, of which %d MB live; the bound is %d MB", h/mb, len(lives), bound/mb)
	}
}

var burst []byte // is made on the heap

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package imagegc

import (
	"strings"
	"testing"
	"time"
)

func ids(images []Image) string {
	var out []string
	for _, i := range images {
		out = append(out, i.ID)
	}
	return strings.Join(out, " ")
}

func TestOrder(t *testing.T) {
	begin := time.Unix(1000, 0)
	table := New(begin)
	image := func(id string, used bool) Image { return Image{ID: id, Bytes: 10, InUse: used, Pinned: id == "pause"} }
	table.See(begin, []Image{image("old", false), image("long-ago", true), image("pause", false), image("busy", true)})
	table.See(begin.Add(time.Minute), []Image{image("old", false), image("long-ago", false), image("lately", true), image("pause", false),
		image("busy", true)})
	now := begin.Add(10 * time.Minute)
	table.See(now, []Image{image("old", false), image("long-ago", false), image("lately", false), image("pause", false), image("busy", true),
		image("new", false)})
	for need, want := range map[int64]string{0: "", 1: "old", 15: "old long-ago", 1000: "old long-ago lately"} {
		if got, _ := table.Free(now, need, 2*time.Minute); ids(got) != want {
			t.Errorf("%d bytes: %s, want %s", need, ids(got), want)
		}
	}
	if got, bytes := table.Free(now, 1000, 0); ids(got) != "old new long-ago lately" || bytes != 40 {
		t.Errorf("whatever their age: %s, %d bytes", ids(got), bytes)
	}
	table.See(now, []Image{image("lately", false)})
	if got, _ := table.Free(now, 1000, 0); ids(got) != "lately" {
		t.Errorf("images that are no more: %s", ids(got))
	}
}

func TestNeed(t *testing.T) {
	s := Settings{High: 85, Low: 80}
	for _, c := range []struct{ capacity, available, want int64 }{{1000, 500, 0}, {1000, 160, 0}, {1000, 151, 49}, {1000, 150, 50},
		{1000, 0, 200}, {0, 0, 0}, {1000, 2000, 0}} {
		if got := Need(s, c.capacity, c.available); got != c.want {
			t.Errorf("%d of %d: %d, want %d", c.available, c.capacity, got, c.want)
		}
	}
}

func TestMaximumAge(t *testing.T) {
	begin := time.Unix(1000, 0)
	table, s := New(begin), Settings{MaxAge: time.Hour}
	table.See(begin, []Image{{ID: "a", InUse: true}, {ID: "b"}})
	table.See(begin.Add(30*time.Minute), []Image{{ID: "a", InUse: true}, {ID: "b"}, {ID: "c"}})
	table.See(begin.Add(31*time.Minute), []Image{{ID: "a"}, {ID: "b"}, {ID: "c"}})
	for after, want := range map[time.Duration]string{59 * time.Minute: "", 61 * time.Minute: "b", 95 * time.Minute: "b c a"} {
		if got := table.Old(begin.Add(after), s); ids(got) != want {
			t.Errorf("after %v: %s, want %s", after, ids(got), want)
		}
	}
	if got := table.Old(begin.Add(100*time.Hour), Settings{}); got != nil {
		t.Errorf("without a greatest age: %s", ids(got))
	}
}

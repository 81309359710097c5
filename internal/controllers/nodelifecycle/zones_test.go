// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// play says what zones decide, step by step: "+ZONE N" are nodes that are ready, "-ZONE N" the last N ready of a zone fail,
// "^ZONE N" as many come back, "DURATION" passes. Who is to be tainted is.
func play(t *testing.T, s settings, steps string) []string {
	t.Helper()
	z := newZones(s)
	now := time.Unix(0, 0)
	var said []string
	for step := range strings.SplitSeq(steps, ", ") {
		switch word, number, _ := strings.Cut(step, " "); word[0] {
		case '+', '-', '^':
			n := 0
			if _, err := fmt.Sscan(number, &n); err != nil {
				t.Fatal(err)
			}
			for i := range 200 {
				name := fmt.Sprintf("%s%d", word[1:], i)
				have := z.nodes[name]
				switch {
				case n == 0:
				case word[0] == '+' && have == nil, word[0] == '^' && have != nil && have.status != corev1.ConditionTrue:
					z.observe(name, node{zone: word[1:], status: corev1.ConditionTrue, counted: true})
					n--
				case word[0] == '-' && have != nil && have.status == corev1.ConditionTrue:
					z.observe(name, node{zone: word[1:], status: corev1.ConditionUnknown, counted: true, waiting: true})
					n--
				}
			}
		default:
			d, err := time.ParseDuration(word)
			if err != nil {
				t.Fatal(err)
			}
			for until := now.Add(d); ; {
				v := z.judge(now)
				for _, name := range v.taint {
					n := *z.nodes[name]
					n.waiting, n.tainted = false, true
					z.observe(name, n)
					said = append(said, fmt.Sprintf("%v taint %s", now.Sub(time.Unix(0, 0)), name))
				}
				for _, name := range v.untaint {
					n := *z.nodes[name]
					n.waiting, n.tainted = true, false
					z.observe(name, n)
					said = append(said, fmt.Sprintf("%v untaint %s", now.Sub(time.Unix(0, 0)), name))
				}
				if v.forgive {
					said = append(said, fmt.Sprintf("%v forgive", now.Sub(time.Unix(0, 0))))
				}
				if v.again.IsZero() || v.again.After(until) {
					now = until
					break
				}
				now = v.again
			}
		}
	}
	return said
}

func TestZones(t *testing.T) {
	s := settings{rate: 0.1, secondary: 0.01, unhealthy: 0.55, large: 50}
	for _, c := range []struct {
		name  string
		s     settings
		steps string
		want  []string
	}{
		{"one after the other", s, "+a 10, 1s, -a 3, 25s", []string{"1s taint a0", "11s taint a1", "21s taint a2"}},
		{"each zone has its turn", s, "+a 5, +b 5, 1s, -a 2, -b 2, 5s, 10s",
			[]string{"1s taint a0", "1s taint b0", "11s taint a1", "11s taint b1"}},
		{"who comes back is left alone", s, "+a 10, 1s, -a 3, 5s, ^a 3, 60s", []string{"1s taint a0"}},
		{"two of three are not many", s, "+a 3, 1s, -a 2, 30s", []string{"1s taint a0", "11s taint a1"}},
		{"most of a small zone", s, "+a 5, 1s, -a 3, 10m", nil},
		{"most of a large zone", s, "+a 60, 1s, -a 40, 250s", []string{"1s taint a0", "1m41s taint a1", "3m21s taint a2"}},
		{"one zone as a whole", s, "+a 2, +b 2, 1s, -a 2, 15s", []string{"1s taint a0", "11s taint a1"}},
		{"all there is", s, "+a 2, +b 2, 1s, -a 2, -b 2, 10m", nil},
		{"all there is, after some", s, "+a 5, 1s, -a 1, 5s, -a 4, 10m", []string{"1s taint a0", "6s untaint a0"}},
		{"and back", s, "+a 5, 1s, -a 1, 5s, -a 4, 10m, ^a 4, 1m", []string{"1s taint a0", "6s untaint a0", "10m6s forgive", "10m16s taint a4"}},
		{"and back in part", s, "+a 5, 1s, -a 5, 1m, ^a 4, 1m", []string{"1m1s forgive", "1m11s taint a4"}},
		{"from the beginning", s, "+a 1, -a 1, 10m", nil},
		{"never", settings{rate: 0, secondary: 0.01, unhealthy: 0.55, large: 50}, "+a 10, 1s, -a 1, 10m", nil},
	} {
		if diff := cmp.Diff(c.want, play(t, c.s, c.steps)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
	}
}

// A node that moves, goes or does not count leaves nothing behind.
func TestZonesForget(t *testing.T) {
	z := newZones(settings{rate: 0.1, unhealthy: 0.55, large: 50})
	now := time.Unix(0, 0)
	z.observe("n", node{zone: "a", status: corev1.ConditionUnknown, counted: true, waiting: true})
	z.observe("m", node{zone: "b", status: corev1.ConditionTrue, counted: true})
	z.observe("x", node{zone: "c", status: corev1.ConditionUnknown, waiting: true})
	z.observe("n", node{zone: "b", status: corev1.ConditionUnknown, counted: true, waiting: true})
	v := z.judge(now)
	if diff := cmp.Diff([]string{"n", "x"}, v.taint); diff != "" {
		t.Errorf("moved (-want +got):\n%s", diff)
	}
	if z.of["a"] != nil {
		t.Error("the zone that nobody is in any more is still there")
	}
	z.retry("n")
	z.remove("n")
	if v := z.judge(now.Add(time.Hour)); len(v.taint) > 0 {
		t.Errorf("a node that is gone is tainted: %v", v.taint)
	}
	if at := z.of["b"]; at.ready != 1 || at.unready != 0 || at.size != 1 {
		t.Errorf("counts: %+v", at)
	}
}

func TestZoneOf(t *testing.T) {
	for _, c := range []struct {
		labels map[string]string
		want   string
	}{
		{nil, ""},
		{map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelTopologyRegion: "r"}, "r:\x00:z"},
		{map[string]string{corev1.LabelTopologyZone: "z", corev1.LabelFailureDomainBetaZone: "old"}, ":\x00:old"},
	} {
		if got := zoneOf(c.labels); got != c.want {
			t.Errorf("%v: got %q, want %q", c.labels, got, c.want)
		}
	}
}

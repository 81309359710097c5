// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	key   = podKey{"ns", "web"}
)

func at(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }

// point is a measurement; cpu is in milliseconds.
func point(seconds, started int, cpu, memory uint64) Point {
	return Point{Time: at(seconds), Started: at(started), CPU: cpu * 1e6, Memory: memory}
}

func pods(seconds int, containers ...Container) *sample {
	all := []Container{{"ns", "wea", "a", point(seconds, 0, 1, 1)}, {"ns", "webs", "a", point(seconds, 0, 1, 1)}}
	return index(&Sample{Node: point(seconds, 0, uint64(seconds)*100, 7), Containers: append(all, containers...)}, at(seconds))
}

// TestPodUsage compares rates, and what makes a pod absent, with the rules of metrics-server.
func TestPodUsage(t *testing.T) {
	one := func(name string, p Point) Container { return Container{key.namespace, key.name, name, p} }
	for name, c := range map[string]struct {
		last, prev *sample
		want       string // empty: the pod is absent
	}{
		"a rate": {pods(20, one("a", point(20, 0, 3000, 9))), pods(10, one("a", point(10, 0, 1000, 5))), "a=200m/9 at 20 over 10s"},
		"the oldest of containers": {
			pods(20, one("a", point(20, 0, 3000, 9)), one("b", point(19, 0, 500, 1))),
			pods(10, one("a", point(10, 0, 1000, 5)), one("b", point(14, 0, 400, 1))), "a=200m/9 b=20m/1 at 19 over 5s",
		},
		"not measured before": {pods(20, one("a", point(20, 0, 3000, 9))), nil, ""},
		"unknown":             {pods(20), pods(10), ""},
		"a container is new": {
			pods(20, one("a", point(20, 0, 3000, 9)), one("b", point(20, 12, 3, 9))),
			pods(10, one("a", point(10, 0, 1000, 5))), "",
		},
		"a container of ten seconds": {pods(22, one("a", point(22, 12, 3000, 9))), pods(10), "a=300m/9 at 22 over 10s"},
		"a restart":                  {pods(20, one("a", point(20, 15, 30, 9))), pods(10, one("a", point(10, 0, 1000, 5))), ""},
		"an old container came late": {pods(30, one("a", point(30, 1, 30, 9))), pods(10), ""},
		"no processor time":          {pods(20, one("a", point(20, 0, 0, 9))), pods(10, one("a", point(10, 0, 0, 5))), ""},
		"no memory":                  {pods(20, one("a", point(20, 0, 9, 0))), pods(10, one("a", point(10, 0, 5, 5))), ""},
		"idle":                       {pods(20, one("a", point(20, 0, 9, 1))), pods(10, one("a", point(10, 0, 9, 1))), "a=0/1 at 20 over 10s"},
		"a counter that went down":   {pods(20, one("a", point(20, 0, 5, 1))), pods(10, one("a", point(10, 0, 9, 1))), ""},
		"the same measurement again": {pods(20, one("a", point(10, 0, 5, 1))), pods(10, one("a", point(10, 0, 5, 1))), ""},
		"one of two counters is down": {
			pods(20, one("a", point(20, 0, 5, 1)), one("b", point(20, 0, 20, 1))),
			pods(10, one("a", point(10, 0, 9, 1)), one("b", point(10, 0, 10, 1))), "b=1m/1 at 20 over 10s",
		},
	} {
		got := ""
		if u, ok := podUsage(c.last, c.prev, key); ok {
			for _, of := range u.containers {
				l := of.list()
				got += fmt.Sprintf("%s=%s/%s ", of.name, l.Cpu(), l.Memory())
			}
			got += fmt.Sprintf("at %d over %s", int(u.at.Sub(start).Seconds()), u.window)
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestNodeUsage(t *testing.T) {
	u, ok := nodeUsage(pods(20), pods(10))
	if l := u.list(); !ok || l.Cpu().String() != "100m" || l.Memory().String() != "7" {
		t.Errorf("%v %v", l, ok)
	}
	for name, last := range map[string]*sample{"none": nil, "no figures": {at: at(20)}, "the same": pods(10)} {
		if u, ok := nodeUsage(last, pods(10)); ok {
			t.Errorf("%s: %v", name, u)
		}
	}
}

const scraped = `# HELP node_cpu_usage_seconds_total [STABLE] Cumulative cpu time consumed by the node in core-seconds
# TYPE node_cpu_usage_seconds_total counter
node_cpu_usage_seconds_total 357.25 1767225610000
# TYPE node_memory_working_set_bytes gauge
node_memory_working_set_bytes 1.616273408e+12 1767225610000
# TYPE container_cpu_usage_seconds_total counter
container_cpu_usage_seconds_total{container="a",namespace="ns",pod="web"} 1.5 1767225609000
container_memory_working_set_bytes{container="a",namespace="ns",pod="web"} 1024 1767225609000
container_start_time_seconds{container="a",namespace="ns",pod="web"} 1.7672256e+09
pod_cpu_usage_seconds_total{namespace="ns",pod="web"} 4.67
resource_scrape_error 0
`

func TestParse(t *testing.T) {
	got, err := parse(strings.NewReader(scraped), at(99))
	if err != nil {
		t.Fatal(err)
	}
	want := &Sample{
		Node:       Point{Time: at(10), CPU: 357_250_000_000, Memory: 1616273408000},
		Containers: []Container{{"ns", "web", "a", Point{Time: at(9), Started: start, CPU: 1_500_000_000, Memory: 1024}}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	got, err = parse(strings.NewReader("node_cpu_usage_seconds_total 1\n"), at(99))
	if err != nil || !got.Node.Time.Equal(at(99)) {
		t.Errorf("without a time: %v, %v", got, err)
	}
	for _, lie := range []string{
		"node_cpu_usage_seconds_total NaN\n", "node_cpu_usage_seconds_total -1\n", "node_memory_working_set_bytes +Inf\n",
		`container_cpu_usage_seconds_total{pod="a"} 1e300` + "\n", "<html>", "node_cpu_usage_seconds_total",
	} {
		if got, err := parse(strings.NewReader(lie), at(0)); err == nil {
			t.Errorf("%q is read as %v", lie, got)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(scraped)
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parse(strings.NewReader(text), at(0))
		if (s == nil) == (err == nil) {
			t.Errorf("%v, %v", s, err)
		}
	})
}

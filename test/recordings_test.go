// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/test/recordings"
)

// differing are the exchanges that Mortise answers otherwise, by id, and why.
var differing = map[string]string{
	"kind/certificates.k8s.io/v1/certificatesigningrequests/get-yaml":   "the administrator of the recording has another name and no uid",
	"kind/certificates.k8s.io/v1/certificatesigningrequests/get-table":  "the administrator of the recording has another name",
	"kind/certificates.k8s.io/v1/certificatesigningrequests/list-table": "the administrator of the recording has another name",
	"path/api": "it holds the server's own address",
}

// recorded is what kube-apiserver 1.37.1 answered; it lies beside the checkout.
const recorded = "../../shared/recordings/upstream-1.37.1.jsonl"

// TestRecordings says the recorded requests, in order, to a bare API server. The answers that are not the same after normalising are
// those of the list, no more and no fewer. Run it with -v and DIFFERENCES=AREA to see what differs in an area.
func TestRecordings(t *testing.T) {
	if _, err := os.Stat(recorded); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("CI lacks the recordings: %v", err)
		}
		t.Skipf("the recordings are not beside this checkout: %v", err)
	}
	cluster := embedtest.Start(t, &embed.Server{Node: embed.NodeNone, Controllers: []string{"none"}})
	client, err := rest.HTTPClientFor(cluster.Config())
	if err != nil {
		t.Fatal(err)
	}
	say := func(e recordings.Exchange) map[string]any { return recordings.Answer(t, client, cluster.URL(), e) }
	for _, e := range recordings.Before() {
		say(e)
	}

	type count struct{ same, all int }
	areas := map[string]*count{}
	total := count{}
	differ := map[string]bool{}
	wanted := os.Getenv("DIFFERENCES")
	err = recordings.Read(recorded, func(e recordings.Exchange) {
		got := say(e)
		if !e.Recorded() {
			return
		}
		c := areas[e.Area()]
		if c == nil {
			c = &count{}
			areas[e.Area()] = c
		}
		c.all++
		total.all++
		d := gocmp.Diff(e.Answer, got)
		if d == "" {
			c.same++
			total.same++
			return
		}
		differ[e.ID] = true
		if wanted != "" && strings.HasPrefix(e.ID, wanted) {
			t.Logf("%s: %s %s\n%s", e.ID, e.Method, e.Path, d)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	groups := map[string]*count{} // what is printed: a line for each API group, and for each other area
	for _, a := range slices.Sorted(maps.Keys(areas)) {
		c, name := areas[a], a
		if c.same < c.all {
			t.Logf("%s: %d of %d", a, c.same, c.all)
		}
		if parts := strings.Split(a, "/"); parts[0] == "kind" {
			name = "kinds of " + parts[1]
		} else if c.all == 1 {
			name = "single requests"
		}
		if groups[name] == nil {
			groups[name] = &count{}
		}
		groups[name].same += c.same
		groups[name].all += c.all
	}
	for _, name := range slices.Sorted(maps.Keys(groups)) {
		t.Logf("%-40s %4d of %4d answers are the same", name, groups[name].same, groups[name].all)
	}
	t.Logf("%d of %d answers are the same", total.same, total.all)
	for id := range differ {
		if differing[id] == "" {
			t.Errorf("%s is answered otherwise: something that was right is wrong now; DIFFERENCES=%s shows it", id, id)
		}
	}
	for id, why := range differing {
		if !differ[id] {
			t.Errorf("%s is answered alike, or is recorded no more: take it off the list (%s)", id, why)
		}
	}
}

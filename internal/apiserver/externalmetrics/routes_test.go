// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package externalmetrics

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/apiserver/aggregate"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

func newRoutes() *Routes {
	return New(Options{
		Servers: aggregate.Options{Ledger: extension.NewLedger(clock.RealClock{})}, Default: func() *aggregate.Service { return nil },
	})
}

func (r *Routes) apply(t *testing.T, name string, obj resource.Object) {
	t.Helper()
	if err := r.Apply(t.Context(), &feed.Change{Resource: resourceOf, Name: name, Object: obj}); err != nil {
		t.Fatal(err)
	}
}

// TestFind asks for the server of paths while routes come and go. The highest priority wins, then the first name.
func TestFind(t *testing.T) {
	r := newRoutes()
	want := func(namespace, metric, server string) {
		t.Helper()
		s, err := r.Find(root + "/namespaces/" + namespace + "/" + metric)
		got := ""
		if s != nil {
			got = s.Name
		}
		if err != nil || got != server {
			t.Errorf("%s in %s goes to %q (%v), not %q", metric, namespace, got, err, server)
		}
	}
	if r.Any() {
		t.Error("there are routes")
	}
	want("shop", "s0-kafka-lag", "")
	const to = `, service: {namespace: a, name: b}}`
	r.apply(t, "keda", routeOf(t, "keda", `{metrics: ["S*-Kafka-*"]`+to))
	want("shop", "s0-kafka-lag", "keda")
	want("shop", "S0-KAFKA-lag", "keda")
	want("shop", "queue", "")
	r.apply(t, "other", routeOf(t, "other", `{metrics: ["s0-*"]`+to))
	want("shop", "s0-kafka-lag", "keda")
	want("shop", "s0-queue", "other")
	r.apply(t, "team", routeOf(t, "team", `{namespaces: ["team-*"], priority: 1`+to))
	want("team-a", "s0-kafka-lag", "team")
	want("team", "s0-kafka-lag", "keda")
	r.apply(t, "both", routeOf(t, "both", `{namespaces: [team-b, team-c], metrics: [lag, "q*"], priority: 2`+to))
	want("team-b", "queue", "both")
	want("team-b", "s0-queue", "team")
	want("team-a", "queue", "team")
	r.apply(t, "other", routeOf(t, "other", `{metrics: ["s0-*"], priority: 3`+to))
	want("team-a", "s0-kafka-lag", "other")
	r.apply(t, "other", nil)
	want("team-a", "s0-kafka-lag", "team")
	if s, err := r.Find(root + "/s0-kafka-lag"); s != nil || err != nil {
		t.Errorf("a path without a namespace goes to %v, %v", s, err)
	}
	r.SetUnreadable([]feed.Key{{Resource: schema.GroupResource{Resource: "services"}, Namespace: "a", Name: "b"}})
	want("shop", "queue", "")
	r.SetUnreadable([]feed.Key{{Resource: resourceOf, Name: "broken"}})
	s, err := r.Find(root + "/namespaces/shop/queue")
	if err == nil || s != nil || !strings.Contains(err.Error(), "ExternalMetricsRoute broken") {
		t.Errorf("while a route is unreadable: %v, %v", s, err)
	}
	r.SetUnreadable(nil)
	for _, name := range []string{"keda", "team", "both"} {
		r.apply(t, name, nil)
	}
	want("shop", "s0-kafka-lag", "")
	if r.Any() || len(r.servers.Services()) != 0 {
		t.Error("routes are left")
	}
}

// TestFindCostsNothing: without routes a request allocates nothing more.
func TestFindCostsNothing(t *testing.T) {
	r := newRoutes()
	if n := testing.AllocsPerRun(100, func() { _, _ = r.Find("/apis/apps/v1/namespaces/default/deployments") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

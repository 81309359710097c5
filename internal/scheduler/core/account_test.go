// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/core"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/schedulertest"
)

// TestAccountAddsUp compares what is told of decisions with what the decisions say: of random pods on random nodes the counts
// are those of the message, and the node that was chosen leads the scores, none of which is higher.
func TestAccountAddsUp(t *testing.T) {
	c := newCluster(t, 3)
	for i := range 60 {
		n := c.node(i)
		c.SetNode(n)
	}
	x := core.New(core.Options{Rand: rand.New(rand.NewPCG(1, 1))})
	chosen, failed := 0, 0
	for range 300 {
		p := c.pod()
		if c.made%5 == 0 {
			p.Spec.Containers[0].Resources.Requests["cpu"] = resource.MustParse("100")
		}
		c.Update(c.snapshot)
		d, err := x.Schedule(t.Context(), c.profile, c.snapshot, profile.NewCycleState(), p, c.profile.Signature(t.Context(), p))
		a := x.Account()
		if a.Nodes != 60 || err == nil && (a.Evaluated != d.Evaluated || a.Feasible != d.Feasible) {
			t.Fatalf("account of %s is of %d nodes, %d asked, %d feasible, decision %+v", p.Name, a.Nodes, a.Evaluated, a.Feasible, d)
		}
		if err != nil {
			var fit *core.FitError
			if !errors.As(err, &fit) {
				t.Fatal(err)
			}
			failed++
			sums := map[string]int{}
			for _, f := range a.Filtered {
				if f.Plugin == "" || len(f.Nodes) > f.Count {
					t.Errorf("%s: %+v", p.Name, f)
				}
				sums[f.Reason] += f.Count
			}
			var parts []string
			for reason, n := range sums {
				parts = append(parts, fmt.Sprintf("%d %s", n, reason))
			}
			slices.Sort(parts)
			text := "0/60 nodes are available: "
			for i, part := range parts {
				if i > 0 {
					text += ", "
				}
				text += part
			}
			if diff := cmp.Diff(text+".", err.Error()); diff != "" {
				t.Errorf("%s (-account +error):\n%s", p.Name, diff)
			}
			continue
		}
		c.assume(t, p, d.Node)
		if a.Feasible < 2 {
			continue
		}
		chosen++
		if len(a.Scores) == 0 || a.Scores[0].Node != d.Node {
			t.Fatalf("%s: scores of %+v, the node is %s", p.Name, a.Scores, d.Node)
		}
		for i, s := range a.Scores {
			if s.Total > a.Scores[max(i-1, 0)].Total {
				t.Errorf("%s: scores are not in order: %+v", p.Name, a.Scores)
			}
			total := int64(0)
			for _, w := range s.Weighted {
				total += w
			}
			if total != s.Total || len(s.Raw) != len(a.Columns) {
				t.Errorf("%s: %+v adds up to %d, columns %v", p.Name, s, total, a.Columns)
			}
		}
	}
	if chosen < 50 || failed < 20 {
		t.Errorf("%d chosen and %d failed are not enough to tell", chosen, failed)
	}
	if a := x.Account(); a.Nodes != 0 {
		t.Errorf("an account that was told already: %+v", a)
	}
}

// refusing refuses each node for a reason of its own.
type refusing struct{}

func (refusing) Name() string { return "Refusing" }
func (refusing) Filter(_ context.Context, _ fwk.CycleState, _ *corev1.Pod, n fwk.NodeInfo) *fwk.Status {
	return fwk.NewStatus(fwk.Unschedulable, "not "+n.Node().Name)
}

func TestAccountIsBounded(t *testing.T) {
	c := newCluster(t, 1)
	for i := range 500 {
		c.SetNode(c.node(i))
	}
	c.Update(c.snapshot)
	p := schedulertest.NewProfile(t, profile.Registry{{Name: "Refusing",
		New: func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
			return refusing{}, nil
		}}}, profile.Clients{Lister: c.snapshot})
	x := core.New(core.Options{})
	if _, err := x.Schedule(t.Context(), p, c.snapshot, profile.NewCycleState(), c.pod(), nil); err == nil {
		t.Fatal("a node was found")
	}
	a, sum := x.Account(), 0
	for _, f := range a.Filtered {
		sum += f.Count
		if len(f.Nodes) > 5 {
			t.Errorf("%d nodes are named", len(f.Nodes))
		}
	}
	if sum != 500 || len(a.Filtered) > 20 || a.Filtered[0].Reason != core.OtherReasons {
		t.Errorf("%d reasons of %d nodes, first %+v", len(a.Filtered), sum, a.Filtered[0])
	}
}

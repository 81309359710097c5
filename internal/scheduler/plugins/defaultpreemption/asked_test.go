// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package defaultpreemption

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/core"
	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
	"github.com/mortise-dev/mortise/internal/scheduler/plugins/noderesources"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/queue"
	"github.com/mortise-dev/mortise/internal/scheduler/schedulertest"
)

// TestAskedAgain: on clusters that change at random, a plug-in that keeps what it found finds what one does that begins anew.
func TestAskedAgain(t *testing.T) {
	kept := 0
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 3))
		cluster, snapshot, waiting := cache.New(), cache.NewSnapshot(), queue.New(nil, queue.Options{})
		name := func() string { return fmt.Sprintf("n%02d", r.IntN(12)) }
		made := 0
		run := func(node string) {
			made++
			cluster.SetPod(there{node, fmt.Sprintf("run-%d", made), int32(r.IntN(3)), fmt.Sprint(1 + r.IntN(2)), r.IntN(60), ""}.pod())
		}
		for i := range 12 {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%02d", i)}}
			n.Status.Allocatable = corev1.ResourceList{"cpu": resource.MustParse("6"), "memory": resource.MustParse("8Gi"),
				"pods": resource.MustParse("10")}
			cluster.SetNode(n)
			for range 4 {
				run(n.Name)
			}
		}
		prof := schedulertest.NewProfile(t, profile.Registry{{Name: noderesources.FitName, New: noderesources.NewFit}},
			profile.Clients{Lister: snapshot, Nominator: waiting})
		p := &plugin{handle: prof, percentage: 10, absolute: 5}
		var nominated []*corev1.Pod
		for step := range 30 {
			switch r.IntN(6) {
			case 0:
				run(name())
			case 1:
				if len(nominated) > 0 {
					waiting.DeleteNominatedPodIfExists(nominated[0])
					nominated = nominated[1:]
				}
			}
			cluster.Update(snapshot)
			pod := there{name: fmt.Sprint("p", step), priority: int32(2 + r.IntN(8)/7), cpu: "4"}.pod()
			if len(nominated) > 0 && r.IntN(4) == 0 {
				pod = nominated[0]
			}
			state := profile.NewCycleState()
			_, err := core.New(core.Options{Forget: true}).Schedule(t.Context(), prof, snapshot, state, pod, nil)
			var fit *core.FitError
			if !errors.As(err, &fit) {
				continue // there is room
			}
			fresh := &plugin{handle: prof, percentage: 10, absolute: 5, next: p.next}
			before := len(p.asked.nodes)
			got, reasons, err := p.search(t.Context(), state, pod, snapshot.Nodes(), fit.Statuses)
			if err != nil {
				t.Fatal(err)
			}
			want, others, err := fresh.search(t.Context(), state, pod, snapshot.Nodes(), fit.Statuses)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(told(want), told(got)) + cmp.Diff(others, reasons); d != "" {
				t.Fatalf("seed %d, step %d: (-anew +kept)\n%s", seed, step, d)
			}
			if len(fresh.asked.nodes) > 0 && before >= len(fresh.asked.nodes) {
				kept++
			}
			if got == nil {
				continue
			}
			node := got.node.Node().Name
			info, err := nodeinfo.NewPodInfo(pod)
			if err != nil {
				t.Fatal(err)
			}
			waiting.AddNominatedPod(klog.Logger{}, info, &fwk.NominatingInfo{NominatingMode: fwk.ModeOverride, NominatedNodeName: node})
			nominated = append(nominated, pod)
			for _, v := range got.victims {
				if r.IntN(2) == 0 { // the others take their time
					cluster.RemovePod(v.UID)
				}
			}
		}
	}
	if kept < 100 {
		t.Errorf("only %d searches could go by what was kept", kept)
	}
}

func told(c *candidate) string {
	if c == nil {
		return ""
	}
	out := fmt.Sprint(c.node.Node().Name, " ", c.hurt)
	for _, v := range c.victims {
		out += " " + v.Name
	}
	return out
}

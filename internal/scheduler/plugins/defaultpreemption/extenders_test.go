// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package defaultpreemption

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/schedulertest"
)

// looking is an extender that looks preemptions through.
type looking struct {
	fwk.Extender

	ignorable bool
	answer    func(map[string]*extenderv1.Victims) (map[string]*extenderv1.Victims, error)
}

func (looking) SupportsPreemption() bool          { return true }
func (looking) IsInterested(pod *corev1.Pod) bool { return pod.Name != "unseen" }
func (x looking) IsIgnorable() bool               { return x.ignorable }
func (x looking) ProcessPreemption(_ *corev1.Pod, v map[string]*extenderv1.Victims, _ fwk.NodeInfoLister) (map[string]*extenderv1.Victims,
	error) {
	return x.answer(v)
}

func TestExtendersLookCandidatesThrough(t *testing.T) {
	leave := func(names ...string) func(map[string]*extenderv1.Victims) (map[string]*extenderv1.Victims, error) {
		return func(v map[string]*extenderv1.Victims) (map[string]*extenderv1.Victims, error) {
			out := map[string]*extenderv1.Victims{}
			for _, n := range names {
				out[n] = v[n]
			}
			return out, nil
		}
	}
	important := there{"b", "vip", 9, "1", 0, ""}.pod()
	naming := func(map[string]*extenderv1.Victims) (map[string]*extenderv1.Victims, error) {
		return map[string]*extenderv1.Victims{"b": {Pods: []*corev1.Pod{important}}}, nil
	}
	fail := func(map[string]*extenderv1.Victims) (map[string]*extenderv1.Victims, error) {
		return nil, errors.New("boom")
	}
	for _, c := range []struct {
		name      string
		pod       string
		extenders []fwk.Extender
		left      string
		err       string
	}{
		{name: "nobody asks", left: "a b"},
		{name: "not interested", pod: "unseen", extenders: []fwk.Extender{looking{answer: fail}}, left: "a b"},
		{name: "one after the other", extenders: []fwk.Extender{looking{answer: leave("a", "b")}, looking{answer: leave("b")}}, left: "b"},
		{name: "none is left, and the next not asked", extenders: []fwk.Extender{looking{answer: leave()}, looking{answer: fail}}},
		{name: "a failure", extenders: []fwk.Extender{looking{answer: fail}}, err: "boom"},
		{name: "a failure that can be ignored", extenders: []fwk.Extender{looking{answer: fail, ignorable: true}, looking{answer: leave("a")}},
			left: "a"},
		{name: "a node without victims", extenders: []fwk.Extender{looking{answer: leave("a", "c")}},
			err: `expected at least one victim pod on node "c"`},
		{name: "one that can be ignored", extenders: []fwk.Extender{looking{answer: leave("a", "c"), ignorable: true}}, left: "a"},
		{name: "a victim as important as the pod", extenders: []fwk.Extender{looking{answer: naming}}, err: "not of lower priority"},
	} {
		t.Run(c.name, func(t *testing.T) {
			cluster, snapshot := cache.New(), cache.NewSnapshot()
			for _, name := range []string{"a", "b"} {
				cluster.SetNode(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
				cluster.SetPod(there{name, "on-" + name, 1, "1", 0, ""}.pod())
			}
			cluster.Update(snapshot)
			p := &plugin{handle: schedulertest.NewProfile(t, nil, profile.Clients{Lister: snapshot, Extenders: c.extenders})}
			var found []*candidate
			for _, n := range snapshot.Nodes() {
				found = append(found, &candidate{node: n, victims: []*corev1.Pod{n.GetPods()[0].GetPod()}})
			}
			if c.pod == "" {
				c.pod = "p"
			}
			out, err := p.askExtenders(there{name: c.pod, priority: 9, cpu: "1"}.pod(), found)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("error is %v, want %s", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var left []string
			for _, x := range out {
				left = append(left, x.node.Node().Name)
			}
			if got := strings.Join(left, " "); got != c.left {
				t.Errorf("left %q, want %q", got, c.left)
			}
		})
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/cache"
)

// FitError explains why no node is feasible.
type FitError struct {
	Pod      *corev1.Pod
	Nodes    int
	Statuses *Statuses
	// PreFilterMessage is the message of the PreFilter plug-in that rejected the pod, PostFilterMessage the result of preemption.
	PreFilterMessage, PostFilterMessage string
	// UnschedulablePlugins and PendingPlugins rejected the pod; the events that they registered may make it schedulable.
	UnschedulablePlugins, PendingPlugins sets.Set[string]
}

func (e *FitError) note(st *fwk.Status) {
	if st.Plugin() == "" {
		return
	}
	if st.IsRejected() {
		e.UnschedulablePlugins.Insert(st.Plugin())
	}
	if st.Code() == fwk.Pending {
		e.PendingPlugins.Insert(st.Plugin())
	}
}

// Error returns the counts of the reasons, in kube-scheduler's words.
func (e *FitError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "0/%v nodes are available:", e.Nodes)
	if e.PreFilterMessage != "" {
		fmt.Fprintf(&b, " %v.", e.PreFilterMessage)
	} else if reasons := e.Statuses.reasons(e.Nodes); len(reasons) > 0 {
		fmt.Fprintf(&b, " %v.", strings.Join(reasons, ", "))
	}
	if e.PostFilterMessage != "" {
		fmt.Fprintf(&b, " %v", e.PostFilterMessage)
	}
	return b.String()
}

// Statuses are the nodes' refusals. PostFilter plug-ins read them; they are valid until the next update of the snapshot.
type Statuses struct {
	snapshot *cache.Snapshot
	rejected []rejection
	absent   *fwk.Status
	byNode   map[string]*fwk.Status // computed on demand
}

var _ fwk.NodeToStatusReader = (*Statuses)(nil)

// NewStatuses returns the refusal of one node, if the others were not examined.
func NewStatuses(node string, st *fwk.Status) *Statuses {
	return &Statuses{
		byNode: map[string]*fwk.Status{node: st}, absent: fwk.NewStatus(fwk.UnschedulableAndUnresolvable),
		rejected: []rejection{{status: st}},
	}
}

// Get returns a node's refusal.
func (s *Statuses) Get(node string) *fwk.Status {
	if s.byNode == nil {
		s.byNode = make(map[string]*fwk.Status, len(s.rejected))
		for _, r := range s.rejected {
			s.byNode[s.snapshot.Nodes()[r.slot].Node().Name] = r.status
		}
	}
	if st, ok := s.byNode[node]; ok {
		return st
	}
	return s.absent
}

// NodesForStatusCode returns the nodes that refused with that code.
func (s *Statuses) NodesForStatusCode(lister fwk.NodeInfoLister, code fwk.Code) ([]fwk.NodeInfo, error) {
	all, err := lister.List()
	if err != nil {
		return nil, err
	}
	var out []fwk.NodeInfo
	for _, n := range all {
		if s.Get(n.Node().Name).Code() == code {
			out = append(out, n)
		}
	}
	return out, nil
}

func (s *Statuses) reasons(nodes int) []string {
	counts := map[string]int{}
	for i := 0; i < len(s.rejected); {
		st, n := s.rejected[i].status, 0
		for ; i < len(s.rejected) && s.rejected[i].status == st; i++ {
			n++
		}
		for _, reason := range st.Reasons() {
			counts[reason] += n
		}
	}
	if len(s.rejected) < nodes && s.absent != nil {
		for _, reason := range s.absent.Reasons() {
			counts[reason] += nodes - len(s.rejected)
		}
	}
	out := make([]string, 0, len(counts))
	for reason, n := range counts {
		out = append(out, fmt.Sprintf("%v %v", n, reason))
	}
	slices.Sort(out)
	return out
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package seats is a scheduler plug-in as others write them: a module of its own that knows nothing but
// k8s.io/kube-scheduler/framework and the libraries that come with it.
//
// A node has as many seats as its label says (the label's name is an argument), and each pod on it that has the label takes
// one. Nodes without a free seat are refused, fuller ones preferred. Pods that name a party wait until as many of it as it is
// big have a seat. Before a pod is bound its seat is noted on it.
package seats

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/kube-scheduler/framework"
)

// Name is the plug-in's name.
const Name = "Seats"

// What pods of a party have: the annotation with its name, and that with its size.
const (
	Party = "example.com/party"
	Size  = "example.com/party-size"
	// Seat is the annotation that tells where the pod sits.
	Seat = "example.com/seat"
)

// Args are the plug-in's arguments.
type Args struct {
	Label string `json:"label"`
}

// New makes the plug-in.
func New(_ context.Context, args runtime.Object, h framework.Handle) (framework.Plugin, error) {
	p := &plugin{handle: h}
	raw, ok := args.(*runtime.Unknown)
	if !ok {
		return nil, fmt.Errorf("arguments are a %T", args)
	}
	if err := json.Unmarshal(raw.Raw, &p.args); err != nil {
		return nil, fmt.Errorf("read arguments: %w", err)
	}
	if p.args.Label == "" {
		return nil, fmt.Errorf("the argument label is missing")
	}
	return p, nil
}

type plugin struct {
	handle framework.Handle
	args   Args
}

var (
	_ framework.PreFilterPlugin   = (*plugin)(nil)
	_ framework.FilterPlugin      = (*plugin)(nil)
	_ framework.ScorePlugin       = (*plugin)(nil)
	_ framework.PermitPlugin      = (*plugin)(nil)
	_ framework.PreBindPlugin     = (*plugin)(nil)
	_ framework.EnqueueExtensions = (*plugin)(nil)
)

func (p *plugin) Name() string { return Name }

func (p *plugin) seated(pod *corev1.Pod) bool {
	_, ok := pod.Labels[p.args.Label]
	return ok
}

func (p *plugin) seats(node *corev1.Node) int64 {
	n, err := strconv.ParseInt(node.Labels[p.args.Label], 10, 32)
	if err != nil {
		return 0
	}
	return n
}

func (p *plugin) free(n framework.NodeInfo) int64 {
	free := p.seats(n.Node())
	for _, other := range n.GetPods() {
		if p.seated(other.GetPod()) {
			free--
		}
	}
	return free
}

// EventsToRegister says that a seat that is left may help, and a node with more of them.
func (p *plugin) EventsToRegister(context.Context) ([]framework.ClusterEventWithHint, error) {
	return []framework.ClusterEventWithHint{
		{
			Event: framework.ClusterEvent{Resource: framework.AssignedPod, ActionType: framework.Delete},
			QueueingHintFn: func(_ klog.Logger, _ *corev1.Pod, old, _ any) (framework.QueueingHint, error) {
				if gone, ok := old.(*corev1.Pod); ok && !p.seated(gone) {
					return framework.QueueSkip, nil
				}
				return framework.Queue, nil
			},
		},
		{
			Event: framework.ClusterEvent{Resource: framework.Node, ActionType: framework.Add | framework.UpdateNodeLabel},
			QueueingHintFn: func(_ klog.Logger, _ *corev1.Pod, old, now any) (framework.QueueingHint, error) {
				before, _ := old.(*corev1.Node)
				after, ok := now.(*corev1.Node)
				if ok && before != nil && p.seats(after) <= p.seats(before) {
					return framework.QueueSkip, nil
				}
				return framework.Queue, nil
			},
		},
	}, nil
}

// PreFilter leaves pods alone that take no seat.
func (p *plugin) PreFilter(_ context.Context, _ framework.CycleState, pod *corev1.Pod, _ []framework.NodeInfo) (*framework.PreFilterResult,
	*framework.Status) {
	if !p.seated(pod) {
		return nil, framework.NewStatus(framework.Skip)
	}
	return nil, nil
}

func (p *plugin) PreFilterExtensions() framework.PreFilterExtensions { return nil }

func (p *plugin) Filter(_ context.Context, _ framework.CycleState, _ *corev1.Pod, n framework.NodeInfo) *framework.Status {
	if p.free(n) > 0 {
		return nil
	}
	return framework.NewStatus(framework.Unschedulable, "node(s) had no free seat")
}

// Score prefers nodes with few free seats.
func (p *plugin) Score(_ context.Context, _ framework.CycleState, pod *corev1.Pod, n framework.NodeInfo) (int64, *framework.Status) {
	if !p.seated(pod) {
		return 0, nil
	}
	return max(0, framework.MaxNodeScore-10*p.free(n)), nil
}

func (p *plugin) ScoreExtensions() framework.ScoreExtensions { return nil }

// Permit has the pods of a party wait for the last of them, which lets them go.
func (p *plugin) Permit(_ context.Context, _ framework.CycleState, pod *corev1.Pod, _ string) (*framework.Status, time.Duration) {
	size, err := strconv.Atoi(pod.Annotations[Size])
	if err != nil {
		return nil, 0
	}
	var others []framework.WaitingPod
	p.handle.IterateOverWaitingPods(func(w framework.WaitingPod) {
		if w.GetPod().Annotations[Party] == pod.Annotations[Party] {
			others = append(others, w)
		}
	})
	if len(others)+1 < size {
		return framework.NewStatus(framework.Wait), 10 * time.Minute
	}
	for _, w := range others {
		w.Allow(Name)
	}
	return nil, 0
}

func (p *plugin) PreBindPreFlight(_ context.Context, _ framework.CycleState, pod *corev1.Pod, _ string) (*framework.PreBindPreFlightResult,
	*framework.Status) {
	if !p.seated(pod) {
		return nil, framework.NewStatus(framework.Skip)
	}
	return &framework.PreBindPreFlightResult{AllowParallel: true}, nil
}

// PreBind notes the seat on the pod.
func (p *plugin) PreBind(ctx context.Context, _ framework.CycleState, pod *corev1.Pod, node string) *framework.Status {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{Seat: node}}})
	if err == nil {
		_, err = p.handle.ClientSet().CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	}
	return framework.AsStatus(err)
}

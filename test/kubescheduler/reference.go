// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package kubescheduler

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler"
	schedulercache "k8s.io/kubernetes/pkg/scheduler/backend/cache"
	"k8s.io/kubernetes/pkg/scheduler/framework"
)

// reference is kube-scheduler's default profile over a cluster.
type reference struct {
	scheduler *scheduler.Scheduler
	snapshot  *schedulercache.Snapshot
	profile   framework.Framework
}

func newReference(ctx context.Context, client kubernetes.Interface, factory informers.SharedInformerFactory) (*reference, error) {
	snapshot := schedulercache.NewEmptySnapshot()
	s, err := scheduler.New(ctx, client, factory, nil, func(string) events.EventRecorderLogger { return events.NewFakeRecorder(0) },
		scheduler.WithNodeInfoSnapshot(snapshot))
	if err != nil {
		return nil, fmt.Errorf("make reference: %w", err)
	}
	return &reference{scheduler: s, snapshot: snapshot, profile: s.Profiles[corev1.DefaultSchedulerName]}, nil
}

// verdict is what the plug-ins say: each feasible node's score in the end, or why there is none.
type verdict struct {
	total   map[string]int64
	scores  map[string]string // of each, plug-in by plug-in
	message string
}

// best are the nodes that score highest.
func (v verdict) best() map[string]bool {
	best, top := map[string]bool{}, int64(-1)
	for node, score := range v.total {
		if score > top {
			clear(best)
			top = score
		}
		if score == top {
			best[node] = true
		}
	}
	return best
}

// judge asks all plug-ins about all nodes.
func (r *reference) judge(ctx context.Context, pod *corev1.Pod) (v verdict, err error) {
	if err := r.scheduler.Cache.UpdateSnapshot(klog.FromContext(ctx), r.snapshot); err != nil {
		return v, fmt.Errorf("update snapshot: %w", err)
	}
	nodes, err := r.snapshot.NodeInfos().List()
	if err != nil {
		return v, fmt.Errorf("list nodes: %w", err)
	}
	fit := &framework.FitError{Pod: pod, NumAllNodes: len(nodes),
		Diagnosis: framework.Diagnosis{NodeToStatus: framework.NewDefaultNodeToStatus()}}
	state := framework.NewCycleState()
	narrowed, st, by := r.profile.RunPreFilterPlugins(ctx, state, pod)
	switch {
	case st.IsRejected():
		fit.Diagnosis.NodeToStatus.SetAbsentNodesStatus(st)
		fit.Diagnosis.PreFilterMsg = st.Message()
		v.message = fit.Error()
		return v, nil
	case !st.IsSuccess():
		return v, st.AsError()
	}
	if !narrowed.AllNodes() {
		// upstream's words
		fit.Diagnosis.NodeToStatus.SetAbsentNodesStatus(fwk.NewStatus(fwk.UnschedulableAndUnresolvable,
			fmt.Sprintf("node(s) didn't satisfy plugin(s) %v", by.UnsortedList())))
	}
	var feasible []fwk.NodeInfo
	for _, node := range nodes {
		if !narrowed.AllNodes() && !narrowed.NodeNames.Has(node.Node().Name) {
			continue
		}
		switch st := r.profile.RunFilterPlugins(ctx, state, pod, node); {
		case st.IsSuccess():
			feasible = append(feasible, node)
		case st.IsRejected():
			fit.Diagnosis.NodeToStatus.Set(node.Node().Name, st)
		default:
			return v, st.AsError()
		}
	}
	if len(feasible) == 0 {
		v.message = fit.Error()
		return v, nil
	}
	if st := r.profile.RunPreScorePlugins(ctx, state, pod, feasible); !st.IsSuccess() {
		return v, errors.Join(errors.New("prescore"), st.AsError())
	}
	scored, st := r.profile.RunScorePlugins(ctx, state, pod, feasible)
	if !st.IsSuccess() {
		return v, errors.Join(errors.New("score"), st.AsError())
	}
	v.total, v.scores = map[string]int64{}, map[string]string{}
	for _, node := range scored {
		v.total[node.Name] = node.TotalScore
		v.scores[node.Name] = fmt.Sprint(node.Scores)
	}
	return v, nil
}

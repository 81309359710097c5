// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podresources

import (
	"bytes"
	"cmp"
	"context"
	"maps"
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podsapi "k8s.io/kubelet/pkg/apis/pods/v1alpha1"
)

// podsServer is pods/v1alpha1.
type podsServer struct {
	podsapi.UnimplementedPodsServer
	Options
}

// shown is a pod as the API shows it.
type shown struct {
	pod  *corev1.Pod
	text []byte // its protobuf
}

// look returns all pods by UID. A pod whose status the node has not computed yet is pending.
func (s podsServer) look() (map[types.UID]shown, error) {
	if !s.Pods.Synced() {
		return nil, status.Error(codes.FailedPrecondition, "Kubelet is initializing") // upstream's words
	}
	out := map[types.UID]shown{}
	for _, pod := range s.Pods.Pods() {
		pod.Status.Phase = cmp.Or(pod.Status.Phase, corev1.PodPending)
		text, err := pod.Marshal()
		if err != nil {
			return nil, status.Errorf(codes.Internal, "failed to marshal pod: %v", err) // upstream's words
		}
		out[pod.UID] = shown{pod, text}
	}
	return out, nil
}

// ListPods returns all pods, in the order of their UIDs.
func (s podsServer) ListPods(context.Context, *podsapi.ListPodsRequest) (_ *podsapi.ListPodsResponse, err error) {
	defer func() { s.Metrics.countPods(s.Metrics.listPods, err) }()
	all, err := s.look()
	if err != nil {
		return nil, err
	}
	out := &podsapi.ListPodsResponse{}
	for _, uid := range slices.Sorted(maps.Keys(all)) {
		out.Pods = append(out.Pods, all[uid].text)
	}
	return out, nil
}

// GetPod returns one pod.
func (s podsServer) GetPod(_ context.Context, q *podsapi.GetPodRequest) (_ *podsapi.GetPodResponse, err error) {
	defer func() { s.Metrics.countPods(s.Metrics.getPod, err) }()
	all, err := s.look()
	if err != nil {
		return nil, err
	}
	pod, there := all[types.UID(q.GetPodUID())]
	if !there {
		return nil, status.Errorf(codes.NotFound, "pod with UID %s not found", q.GetPodUID()) // upstream's words
	}
	return &podsapi.GetPodResponse{Pod: pod.text}, nil
}

// WatchPods sends all pods, and then what changes. A client that reads slowly gets the newest state of what has changed meanwhile.
func (s podsServer) WatchPods(
	_ *podsapi.WatchPodsRequest, stream grpc.ServerStreamingServer[podsapi.WatchPodsEvent],
) (err error) {
	defer func() { s.Metrics.countPods(s.Metrics.watchPods, err) }()
	var sent map[types.UID]shown
	for {
		next := s.Pods.Changed()
		now, err := s.look()
		if err != nil {
			return err
		}
		for _, e := range difference(sent, now) {
			if err := stream.Send(e); err != nil {
				return err
			}
		}
		if sent == nil {
			if err := stream.Send(&podsapi.WatchPodsEvent{Type: podsapi.EventType_INITIAL_SYNC_COMPLETE}); err != nil {
				return err
			}
		}
		sent = now
		select {
		case <-stream.Context().Done():
			return nil
		case <-next:
		}
	}
}

// difference returns the events that lead from one state to another, in the order of the pods' UIDs. A deleted pod has only its names.
func difference(from, to map[types.UID]shown) []*podsapi.WatchPodsEvent {
	var out []*podsapi.WatchPodsEvent
	for _, uid := range slices.Sorted(maps.Keys(from)) {
		if _, there := to[uid]; there {
			continue
		}
		p := from[uid].pod
		names := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID}}
		if text, err := names.Marshal(); err == nil {
			out = append(out, &podsapi.WatchPodsEvent{Type: podsapi.EventType_DELETED, Pod: text})
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(to)) {
		was, there := from[uid]
		switch {
		case !there:
			out = append(out, &podsapi.WatchPodsEvent{Type: podsapi.EventType_ADDED, Pod: to[uid].text})
		case !bytes.Equal(was.text, to[uid].text):
			out = append(out, &podsapi.WatchPodsEvent{Type: podsapi.EventType_MODIFIED, Pod: to[uid].text})
		}
	}
	return out
}

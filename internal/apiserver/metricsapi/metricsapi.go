// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package metricsapi serves metrics.k8s.io/v1beta1, the CPU and memory that nodes and pods use, for kubectl top and autoscalers. Its
// answers are metrics-server's.
//
// A [Server] asks nodes only while clients ask it (docs/decisions/0015). CPU usage is a rate between two measurements of a node: of those
// at least [resolution] apart while clients keep asking, and of two that are [firstWindow] apart when the first one asks. So the first
// answer takes a second, and without clients there is neither work nor memory.
//
//   - scrape.go decides when to measure a node, and waits for the result.
//   - remote.go reads /metrics/resource of a node of another process.
//   - usage.go computes rates from two measurements. It is pure.
//   - columns.go makes tables.
package metricsapi

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/mortise-dev/mortise/resource"
)

// Group is the API group.
const Group = metricsv1beta1.GroupName

var (
	nodesResource = schema.GroupResource{Resource: "nodes"}
	podsResource  = schema.GroupResource{Resource: "pods"}
)

// Kinds returns the descriptors of the group's kinds, which the server answers.
func (s *Server) Kinds() []*resource.Descriptor {
	gv := metricsv1beta1.SchemeGroupVersion.Version
	reading := []string{"get", "list"}
	return []*resource.Descriptor{
		{
			Group: Group, Resource: "nodes", Kind: "NodeMetrics", ListKind: "NodeMetricsList", Storage: gv, Prefix: Group + "/nodes", Verbs: reading,
			Versions: []resource.Version{{
				Name: gv, New: func() resource.Object { return &metricsv1beta1.NodeMetrics{} }, Columns: columns{}, Protobuf: true,
				Derived: &resource.Derived{
					From: nodesResource, Make: s.nodeMetrics,
					List: func(objs []resource.Object) runtime.Object {
						l := &metricsv1beta1.NodeMetricsList{Items: make([]metricsv1beta1.NodeMetrics, len(objs))}
						for i, obj := range objs {
							l.Items[i] = *obj.(*metricsv1beta1.NodeMetrics)
						}
						return l
					},
					Missing: func(_, name string, exists bool) error {
						if exists {
							return apierrors.NewNotFound(schema.GroupResource{Group: Group, Resource: "nodemetrics"}, name)
						}
						return apierrors.NewNotFound(schema.GroupResource{Resource: "node"}, name) // metrics-server's words
					},
				},
			}},
			Codec: resource.ProtobufCodec(metricsv1beta1.SchemeGroupVersion.WithKind("NodeMetrics"),
				func() resource.Object { return &metricsv1beta1.NodeMetrics{} }),
		},
		{
			Group: Group, Resource: "pods", Kind: "PodMetrics", ListKind: "PodMetricsList", Storage: gv, Prefix: Group + "/pods", Verbs: reading,
			Namespaced: true,
			Versions: []resource.Version{{
				Name: gv, New: func() resource.Object { return &metricsv1beta1.PodMetrics{} }, Columns: columns{}, Protobuf: true,
				Derived: &resource.Derived{
					From: podsResource, Make: s.podMetrics, Find: s.Labels.find,
					List: func(objs []resource.Object) runtime.Object {
						l := &metricsv1beta1.PodMetricsList{Items: make([]metricsv1beta1.PodMetrics, len(objs))}
						for i, obj := range objs {
							l.Items[i] = *obj.(*metricsv1beta1.PodMetrics)
						}
						return l
					},
					Missing: func(namespace, name string, exists bool) error {
						if exists {
							return apierrors.NewNotFound(schema.GroupResource{Group: Group, Resource: "podmetrics"}, namespace+"/"+name)
						}
						return apierrors.NewNotFound(podsResource, name)
					},
				},
			}},
			Codec: resource.ProtobufCodec(metricsv1beta1.SchemeGroupVersion.WithKind("PodMetrics"),
				func() resource.Object { return &metricsv1beta1.PodMetrics{} }),
		},
	}
}

// nodeMetrics returns the usage of nodes, without those that have not answered.
func (s *Server) nodeMetrics(ctx context.Context, b resource.Backend, sources []resource.Object) ([]resource.Object, error) {
	nodes := make([]*corev1.Node, 0, len(sources))
	for _, obj := range sources {
		if n, ok := obj.(*corev1.Node); ok {
			nodes = append(nodes, n)
		}
	}
	s.measure(ctx, b, nodes)
	now := metav1.Now()
	out := make([]resource.Object, 0, len(nodes))
	for _, n := range nodes {
		last, prev := s.samples(n.Name)
		if u, ok := nodeUsage(last, prev); ok {
			out = append(out, &metricsv1beta1.NodeMetrics{
				ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: n.Labels, CreationTimestamp: now},
				Timestamp:  metav1.NewTime(u.at), Window: metav1.Duration{Duration: u.window}, Usage: u.list(),
			})
		}
	}
	slices.SortFunc(out, func(a, b resource.Object) int { return cmp.Compare(a.GetName(), b.GetName()) })
	return out, nil
}

// podMetrics returns the usage of pods, without those of which a container has not been measured twice.
func (s *Server) podMetrics(ctx context.Context, b resource.Backend, sources []resource.Object) ([]resource.Object, error) {
	pods := make([]*corev1.Pod, 0, len(sources))
	var nodes []*corev1.Node
	known := map[string]bool{}
	for _, obj := range sources {
		p, ok := obj.(*corev1.Pod)
		if !ok || !runs(p) {
			continue
		}
		pods = append(pods, p)
		if name := p.Spec.NodeName; !known[name] {
			known[name] = true
			obj, err := b.Get(ctx, nodesResource, "", name)
			if n, ok := obj.(*corev1.Node); ok && err == nil {
				nodes = append(nodes, n)
			}
		}
	}
	s.measure(ctx, b, nodes)
	now := metav1.Now()
	out := make([]resource.Object, 0, len(pods))
	for _, p := range pods {
		last, prev := s.samples(p.Spec.NodeName)
		m := &metricsv1beta1.PodMetrics{}
		if ofPod(m, p, last, prev, now) {
			out = append(out, m)
		}
	}
	slices.SortFunc(out, func(a, b resource.Object) int {
		return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
	})
	return out, nil
}

// runs reports whether a pod may use anything.
func runs(p *corev1.Pod) bool {
	return p.Spec.NodeName != "" && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed
}

// ofPod makes m the usage of a pod; false: a container has not been measured twice.
func ofPod(m *metricsv1beta1.PodMetrics, p *corev1.Pod, last, prev *sample, now metav1.Time) bool {
	of, ok := podUsage(last, prev, podKey{p.Namespace, p.Name})
	if !ok {
		return false
	}
	*m = metricsv1beta1.PodMetrics{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels, CreationTimestamp: now},
		Timestamp:  metav1.NewTime(of.at), Window: metav1.Duration{Duration: of.window},
		Containers: make([]metricsv1beta1.ContainerMetrics, len(of.containers)),
	}
	for i, c := range of.containers {
		m.Containers[i] = metricsv1beta1.ContainerMetrics{Name: c.name, Usage: c.list()}
	}
	return true
}

// Known returns at once what a client that asks for some pods gets, in any order; nil: a node of them has to be measured first. It counts
// as a question of a client.
func (s *Server) Known(pods []*corev1.Pod) *metricsv1beta1.PodMetricsList {
	type window struct{ last, prev *sample }
	windows := make([]window, len(pods))
	asked := time.Now()
	s.mu.Lock()
	for i, p := range pods {
		if !runs(p) {
			continue
		}
		n := s.nodes[p.Spec.NodeName]
		if n == nil || n.last == nil || asked.Sub(n.last.at) >= resolution {
			s.mu.Unlock()
			return nil
		}
		n.asked = asked
		windows[i].last, windows[i].prev = n.samples()
	}
	s.mu.Unlock()
	now := metav1.NewTime(asked)
	out := &metricsv1beta1.PodMetricsList{Items: make([]metricsv1beta1.PodMetrics, len(pods))}
	known := 0
	for i, p := range pods {
		if m := &out.Items[known]; ofPod(m, p, windows[i].last, windows[i].prev, now) {
			m.Timestamp = m.Timestamp.Rfc3339Copy() // clients get whole seconds
			known++
		}
	}
	out.Items = out.Items[:known]
	return out
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/mortise-dev/mortise/internal/apiserver"
	"github.com/mortise-dev/mortise/internal/apiserver/metricsapi"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/node"
	"github.com/mortise-dev/mortise/resource"
)

// makeMetricsAPI creates the server of metrics.k8s.io; nil: it is not served. A bare server has no nodes.
func makeMetricsAPI(a *assembly) *metricsapi.Server {
	if on := a.settings.APIServer.Aggregation.ResourceMetrics; a.settings.bare && on == nil || !or(on, true) {
		return nil
	}
	return metricsapi.New(metricsapi.Options{
		Local: ownNodes{a.node.Usage()}, Log: a.settings.Logger.With("part", "metrics"), Ledger: a.ledger,
	})
}

// metricsKinds returns the kinds of metrics.k8s.io.
func metricsKinds(s *metricsapi.Server) []*resource.Descriptor {
	if s == nil {
		return nil
	}
	return s.Kinds()
}

// podLabels returns what finds pods for the server; nil: there is no server.
func podLabels(s *metricsapi.Server) *metricsapi.Labels {
	if s == nil {
		return nil
	}
	return s.Labels
}

// ownNodes measures the nodes of this process.
type ownNodes struct{ usage *node.Usage }

// Measure implements [metricsapi.Local].
func (o ownNodes) Measure(ctx context.Context, of *corev1.Node) (*metricsapi.Sample, error) {
	u, err := o.usage.Measure(ctx, of)
	if u == nil || err != nil {
		return nil, err
	}
	s := &metricsapi.Sample{Containers: make([]metricsapi.Container, len(u.Containers))}
	if u.Host != nil {
		s.Node = metricsapi.Point{Time: u.Time, CPU: u.Host.CPUNanoseconds, Memory: u.Host.MemoryWorkingSetBytes}
	}
	for i, c := range u.Containers {
		s.Containers[i] = metricsapi.Container{
			Namespace: c.Target.Namespace, Pod: c.Target.Pod, Name: c.Target.Container,
			Point: metricsapi.Point{Time: c.Time, Started: c.Started, CPU: c.CPUNanoseconds, Memory: c.MemoryWorkingSetBytes},
		}
	}
	return s, nil
}

// podUsage tells controllers what the server of metrics.k8s.io measures.
type podUsage struct {
	server *metricsapi.Server
	api    apiserver.Direct
}

// makePodUsage returns what tells controllers the usage of pods; nil: metrics.k8s.io is not built in.
func makePodUsage(a *assembly) controllers.PodUsage {
	if a.metrics == nil {
		return nil
	}
	return podUsage{a.metrics, apiserver.NewDirect(a.server)}
}

// Read implements [controllers.PodUsage].
func (u podUsage) Read(pods []*corev1.Pod) *metricsv1beta1.PodMetricsList {
	if u.api.Delegates(metricsv1beta1.SchemeGroupVersion) {
		return nil
	}
	return u.server.Known(pods)
}

// Watch implements [controllers.PodUsage].
func (u podUsage) Watch(key types.NamespacedName, of *controllers.UsageWatch) {
	if of == nil {
		u.server.Watch(key, nil)
		return
	}
	w := &metricsapi.Watch{Wake: of.Wake, Pods: make([]metricsapi.Pod, 0, len(of.Pods)), Bounds: make([]metricsapi.Bound, len(of.Bounds))}
	for _, p := range of.Pods {
		if p.Spec.NodeName != "" {
			w.Pods = append(w.Pods, metricsapi.Pod{Namespace: p.Namespace, Name: p.Name, Node: p.Spec.NodeName})
		}
	}
	for i, b := range of.Bounds {
		w.Bounds[i] = metricsapi.Bound(b)
	}
	u.server.Watch(key, w)
}

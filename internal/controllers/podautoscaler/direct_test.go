// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler_test

import (
	"context"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// direct reads scales, and what pods use, as where the API server is in the process of the controller.
type direct struct {
	*rig
	fakeUsage
	cpu   atomic.Pointer[string] // that each pod uses; nil: another server answers
	reads atomic.Int32
}

// Read implements [controllers.PodUsage].
func (d *direct) Read(pods []*corev1.Pod) *metricsv1beta1.PodMetricsList {
	cpu := d.cpu.Load()
	if cpu == nil {
		return nil
	}
	d.reads.Add(1)
	list := &metricsv1beta1.PodMetricsList{}
	for _, p := range pods {
		list.Items = append(list.Items, metricsv1beta1.PodMetrics{
			ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}, Timestamp: metav1.Now(),
			Containers: []metricsv1beta1.ContainerMetrics{{Name: "app", Usage: corev1.ResourceList{"cpu": resource.MustParse(*cpu)}}},
		})
	}
	return list
}

// Scale implements [controllers.Scales].
func (d *direct) Scale(ctx context.Context, of schema.GroupVersionResource, namespace, name string) *autoscalingv1.Scale {
	if of != deployments {
		return nil
	}
	s, err := d.client.AppsV1().Deployments(namespace).GetScale(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return s
}

// TestDirect: the controller asks the API neither for scales nor for the usage of pods where both can be read beside it, until another
// server answers for metrics.k8s.io.
func TestDirect(t *testing.T) {
	d := &direct{fakeUsage: make(fakeUsage, 1000)}
	use := func(cpu string) { d.cpu.Store(&cpu) }
	use("60m")
	d.rig = startWith(t, func(f *rig) controllers.Scaling { d.rig = f; return controllers.Scaling{Usage: d, Scales: d} },
		"horizontal-pod-autoscaler-sync-period=100ms", "horizontal-pod-autoscaler-cpu-initialization-period=0s")
	d.apply(deployment("web", 2))
	await(d.rig, deployments, "web", func(w *appsv1.Deployment) bool { return w.Status.ReadyReplicas == 2 })
	d.apply(byUtilization)
	shows := func(percent int32) func(*autoscalingv2.HorizontalPodAutoscaler) bool {
		return func(h *autoscalingv2.HorizontalPodAutoscaler) bool {
			return len(h.Status.CurrentMetrics) == 1 && h.Status.CurrentMetrics[0].Resource != nil &&
				*h.Status.CurrentMetrics[0].Resource.Current.AverageUtilization == percent
		}
	}
	await(d.rig, hpas, "web", shows(60))
	use("120m")
	await(d.rig, deployments, "web", func(w *appsv1.Deployment) bool { return *w.Spec.Replicas > 2 })
	d.metrics.mu.Lock()
	asked := d.metrics.scales
	d.metrics.mu.Unlock()
	if asked > 0 || d.reads.Load() == 0 {
		t.Errorf("%d questions for scales, %d readings of usage", asked, d.reads.Load())
	}
	d.use("30m") // of the other server
	d.cpu.Store(nil)
	await(d.rig, hpas, "web", shows(30))
}

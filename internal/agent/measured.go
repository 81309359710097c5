// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/resourcemetrics"
	"github.com/mortise-dev/mortise/internal/agent/topologymanager"
)

// measured counts admissions under the names of kubelet's topology manager.
type measured struct {
	*containermanager.Manager
	topology *topologymanager.Policy
	metrics  *resourcemetrics.Metrics
	clock    clock.PassiveClock
}

// Admit allocates the pod's resources, and measures it.
func (m measured) Admit(ctx context.Context, pod *corev1.Pod) error {
	m.metrics.Admissions.Inc()
	began := m.clock.Now()
	err := m.Manager.Admit(ctx, pod)
	m.metrics.AdmissionDuration.Observe(float64(m.clock.Since(began).Milliseconds()))
	reject := (*containermanager.Rejection)(nil)
	if errors.As(err, &reject) && m.topology != nil {
		m.metrics.AdmissionErrors.Inc()
	}
	if m.topology == nil || !m.topology.Guarantees() {
		return err
	}
	scope := m.topology.Scope()
	switch {
	case err == nil && scope == containermanager.PodScope:
		m.metrics.Aligned.WithLabelValues(scope, resourcemetrics.BoundaryNUMA).Inc()
	case err == nil:
		m.metrics.Aligned.WithLabelValues(scope, resourcemetrics.BoundaryNUMA).Add(
			float64(len(pod.Spec.InitContainers) + len(pod.Spec.Containers)))
	case reject != nil && reject.Reason == containermanager.TopologyAffinityError:
		m.metrics.Misaligned.WithLabelValues(scope, resourcemetrics.BoundaryNUMA).Inc()
	}
	return err
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"testing"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
)

// Each end of a container counts once.
func TestTerminatedContainers(t *testing.T) {
	ended := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{
		Terminated: &corev1.ContainerStateTerminated{ExitCode: 3, Reason: "Error"},
	}}}}
	running := corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{Name: "c"}}}
	m := NewMetrics()
	m.wrote(&corev1.PodStatus{}, &running)
	m.wrote(&running, &ended)
	m.wrote(&ended, &ended)
	m.wrote(&ended, &running)
	m.wrote(&running, &ended)
	var d dto.Metric
	if err := m.terminated.WithLabelValues("container", "3", "Error").Write(&d); err != nil || d.GetCounter().GetValue() != 2 {
		t.Errorf("%v ends, %v, want 2", d.GetCounter().GetValue(), err)
	}
}

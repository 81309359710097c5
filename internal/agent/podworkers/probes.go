// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podworkers

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/probe"
)

// ensureProbed starts the probes of the container, which run until it is no longer kept.
func (m *Manager) ensureProbed(ctx context.Context, pod *corev1.Pod, spec *corev1.Container, c *podstate.Container, ips []string) {
	in := probe.Instance{Pod: pod, Container: spec, ID: c.ID, Started: c.Started}
	if len(ips) > 0 {
		in.PodIP = ips[0]
	}
	m.probes.Ensure(context.WithoutCancel(ctx), in)
}

// reportProbe records an event for an attempt that did not succeed.
func (m *Manager) reportProbe(in probe.Instance, kind string, result probe.Result, output string, err error) {
	switch {
	case err != nil:
		message := fmt.Sprintf("%s probe errored and resulted in %s state: %s", kind, result, err)
		m.containerEvent(in.Pod, in.Container, corev1.EventTypeWarning, "Unhealthy", message)
	case result == probe.Warning:
		m.containerEvent(in.Pod, in.Container, corev1.EventTypeWarning, "ProbeWarning", fmt.Sprintf("%s probe warning: %s", kind, output))
	default:
		m.containerEvent(in.Pod, in.Container, corev1.EventTypeWarning, "Unhealthy", fmt.Sprintf("%s probe failed: %s", kind, output))
	}
}

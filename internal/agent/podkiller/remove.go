// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podkiller

import (
	"context"
	"fmt"
	"os"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// Remove removes the pod's dead containers, sandboxes and logs.
func (k *Killer) Remove(ctx context.Context, pod *corev1.Pod, state *podstate.Pod) error {
	for _, c := range state.Containers {
		if err := k.Runtime.Runtime.RemoveContainer(cri.Quiet(ctx), c.ID); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove container %s: %w", c.Name, err)
		}
	}
	for _, s := range state.Sandboxes {
		// A sandbox that the runtime has lost may still have a network: the stop runs CNI's DEL.
		if err := k.Runtime.Runtime.StopPodSandbox(cri.Quiet(ctx), s.ID); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("stop sandbox %s: %w", s.ID, err)
		}
		if err := k.Runtime.Runtime.RemovePodSandbox(cri.Quiet(ctx), s.ID); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove sandbox %s: %w", s.ID, err)
		}
	}
	if pod.Name == "" {
		return nil
	}
	if err := os.RemoveAll(k.Logs.PodLogDir(pod)); err != nil {
		return fmt.Errorf("remove logs: %w", err)
	}
	return nil
}

// Prune removes all dead instances of containers except the newest of each, and dead sandboxes without containers.
func (k *Killer) Prune(ctx context.Context, state *podstate.Pod) error {
	seen := map[string]int{}
	inUse := map[string]bool{}
	for _, c := range state.Containers {
		if c.State == podstate.Running || c.State == podstate.Unknown {
			inUse[c.SandboxID] = true
			continue
		}
		seen[c.Name]++
		if seen[c.Name] == 1 {
			inUse[c.SandboxID] = true
			continue
		}
		if err := k.Runtime.Runtime.RemoveContainer(cri.Quiet(ctx), c.ID); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove container %s: %w", c.Name, err)
		}
	}
	for i, s := range state.Sandboxes {
		if i == 0 || s.Ready || inUse[s.ID] {
			continue
		}
		if err := k.Runtime.Runtime.RemovePodSandbox(cri.Quiet(ctx), s.ID); err != nil && !cri.IsNotFound(err) {
			return fmt.Errorf("remove sandbox %s: %w", s.ID, err)
		}
	}
	return nil
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/decide"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// pause is the delay before an ended container restarts, and the default run time of a Job's container.
const pause = time.Second

// runtimeState returns the state that a runtime would have of a started pod now, derived from the pod's last status, and when to look again
// (zero: only when the pod changes).
func runtimeState(pod *corev1.Pod, ip string, now time.Time, takes Phases) (*podstate.Pod, time.Time) {
	now = now.Truncate(time.Second) // statuses have whole seconds
	before := statuses(pod)
	if due, waits := begins(pod, before, takes.Starts, now); waits {
		return &podstate.Pod{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name}, due
	}
	box := podstate.Sandbox{ID: id(pod, "", 0), Created: now, Ready: true, Networked: true, HostNetwork: pod.Spec.HostNetwork}
	if !pod.Spec.HostNetwork {
		box.IPs = []string{ip}
	}
	state := &podstate.Pod{UID: pod.UID, Namespace: pod.Namespace, Name: pod.Name, Sandboxes: []podstate.Sandbox{box}}
	var wake time.Time
	soonest := func(t time.Time) {
		if !t.IsZero() && (wake.IsZero() || t.Before(wake)) {
			wake = t
		}
	}
	initialized := true
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		switch {
		case decide.Sidecar(c):
			soonest(run(state, pod, c, before[c.Name], life{}, now))
		default:
			soonest(run(state, pod, c, before[c.Name], lifeOfInit(c), now))
			initialized = succeeded(state, c.Name)
		}
		if !initialized {
			break // the next init container waits for it
		}
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		if was := before[c.Name].State; !initialized && was.Running == nil && was.Terminated == nil {
			continue
		}
		soonest(run(state, pod, c, before[c.Name], lifeOf(pod, c, takes), now))
	}
	for i := range state.Containers {
		if c := &state.Containers[i]; takes.Ready > 0 && c.State == podstate.Running && now.Before(c.Started.Add(takes.Ready)) {
			soonest(c.Started.Add(takes.Ready))
		}
	}
	for i := range pod.Spec.EphemeralContainers {
		c := corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon)
		soonest(run(state, pod, &c, before[c.Name], life{}, now))
	}
	return state, wake
}

// begins returns when a pod's containers start, and whether that is in the future. A started pod does not wait again.
func begins(pod *corev1.Pod, before map[string]corev1.ContainerStatus, after time.Duration, now time.Time) (due time.Time, waits bool) {
	if after <= 0 || pod.DeletionTimestamp != nil {
		return time.Time{}, false
	}
	for _, s := range before {
		if s.State.Running != nil || s.State.Terminated != nil {
			return time.Time{}, false
		}
	}
	due = now.Add(after)
	if pod.Status.StartTime != nil {
		due = pod.Status.StartTime.Add(after)
	}
	return due, now.Before(due)
}

// run adds a container's instances, newest first, and returns when the container will change by itself.
func run(state *podstate.Pod, pod *corev1.Pod, c *corev1.Container, was corev1.ContainerStatus, l life, now time.Time) time.Time {
	if pod.DeletionTimestamp != nil && was.State.Running == nil && was.State.Terminated == nil {
		return time.Time{} // too late to start
	}
	instance := podstate.Container{
		ID: id(pod, c.Name, was.RestartCount), Name: c.Name, SandboxID: state.Sandboxes[0].ID, State: podstate.Running, Started: now,
		Created: now,
		Image:   c.Image, ImageRef: "simulated://" + c.Image, Note: podstate.Note{RestartCount: was.RestartCount, Hash: podstate.Hash(c)},
	}
	next := func() podstate.Container { // the next instance
		n := instance
		n.Note.RestartCount++
		n.ID, n.Started, n.Created = id(pod, c.Name, n.Note.RestartCount), now, now
		n.State, n.Finished, n.ExitCode, n.Reason = podstate.Running, time.Time{}, 0, ""
		return n
	}
	var wake time.Time
	switch t, r := was.State.Terminated, was.State.Running; {
	case t != nil:
		ended := instance
		ended.State, ended.ExitCode, ended.Reason = podstate.Exited, t.ExitCode, t.Reason
		ended.Started, ended.Finished = t.StartedAt.Time, t.FinishedAt.Time
		if pod.DeletionTimestamp == nil && decide.ShouldRestart(pod, c, t.ExitCode) && !isInit(pod, c, t) {
			if again := t.FinishedAt.Add(pause); now.Before(again) {
				wake = again
			} else {
				state.Containers = append(state.Containers, next(), ended)
				if l.ends {
					wake = now.Add(l.runFor)
				}
				return wake
			}
		}
		state.Containers = append(state.Containers, ended)
		return wake
	case r != nil:
		instance.Started, instance.Created = r.StartedAt.Time, r.StartedAt.Time
		if was.Image != c.Image {
			old := instance
			old.Image = was.Image
			end(&old, 0, now)
			state.Containers = append(state.Containers, next(), old)
			return wake
		}
	}
	switch due := instance.Started.Add(l.runFor); {
	case pod.DeletionTimestamp != nil:
		end(&instance, 0, now)
	case l.ends && !now.Before(due):
		end(&instance, l.exitCode, now)
		if decide.ShouldRestart(pod, c, l.exitCode) && !isInit(pod, c, nil) {
			wake = now.Add(pause)
		}
	case l.ends:
		wake = due
	}
	state.Containers = append(state.Containers, instance)
	return wake
}

// succeeded reports whether a container's newest instance has exited with 0.
func succeeded(state *podstate.Pod, name string) bool {
	i := slices.IndexFunc(state.Containers, func(c podstate.Container) bool { return c.Name == name })
	return i >= 0 && state.Containers[i].State == podstate.Exited && state.Containers[i].ExitCode == 0
}

// isInit reports whether the container is an init container that ended well: it does not run again, whatever the restart policy.
func isInit(pod *corev1.Pod, c *corev1.Container, t *corev1.ContainerStateTerminated) bool {
	for i := range pod.Spec.InitContainers {
		if pod.Spec.InitContainers[i].Name == c.Name {
			return !decide.Sidecar(c) && (t == nil || t.ExitCode == 0)
		}
	}
	return false
}

func end(c *podstate.Container, code int32, now time.Time) {
	c.State, c.ExitCode, c.Finished, c.Reason = podstate.Exited, code, now, "Completed"
	if code != 0 {
		c.Reason = "Error"
	}
}

// statuses returns the pod's container statuses of all kinds, by name.
func statuses(pod *corev1.Pod) map[string]corev1.ContainerStatus {
	out := map[string]corev1.ContainerStatus{}
	for _, list := range [][]corev1.ContainerStatus{
		pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses, pod.Status.EphemeralContainerStatuses,
	} {
		for _, s := range list {
			out[s.Name] = s
		}
	}
	return out
}

// id returns an ID that depends only on its arguments, so that it is the same after a restart.
func id(pod *corev1.Pod, container string, attempt int32) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%s/%d", pod.UID, container, attempt))
	return hex.EncodeToString(sum[:])
}

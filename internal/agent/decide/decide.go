// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package decide computes the next action that brings a pod closer to its definition. It is pure: it takes the definition, the runtime's
// state, the probes' results and the time, and returns an Action. The caller decides anew after every action, so an Action needs no plan of
// several steps.
//
// A worked example, a pod with an init container i and a container c:
//
//	runtime has                        action
//	nothing                            make a sandbox
//	sandbox                            start i
//	sandbox, i running                 nothing
//	sandbox, i exited 0                start c
//	sandbox, i exited 0, c running     nothing
//	sandbox, i exited 0, c exited 1    start c, not before its back-off is over
//	sandbox not ready, c exited        stop the sandbox, make another, start i
package decide

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// Input has the facts of a decision.
type Input struct {
	Pod   *corev1.Pod
	State *podstate.Pod
	// Failed are the failed probes that require a restart, by container ID: "liveness" or "startup".
	Failed map[string]string
	// Started reports whether the running container (by ID) has passed its startup probe, or has none.
	Started func(containerID string) bool
	// Backoff returns until when the container must not start again, and the whole back-off. Next calls it only for containers that have ended
	// before.
	Backoff func(container *corev1.Container, last *podstate.Container) (until time.Time, wait time.Duration)
	Now     time.Time
}

// Action is the next step.
type Action struct {
	// KillPod: stop every container, then the sandboxes. With CreateSandbox, continue after that.
	KillPod       bool
	CreateSandbox bool
	Attempt       uint32 // of the new sandbox
	// SandboxChanged means that the new sandbox replaces an existing one.
	SandboxChanged bool
	// SandboxReason is the condition's reason if there is no usable sandbox.
	SandboxReason string

	// Reset: stop and remove these instances; then everything starts again in the same sandbox.
	Reset []Reset

	Kill  []Kill
	Start []*corev1.Container
	// Ephemeral are the ephemeral containers to start.
	Ephemeral []*corev1.EphemeralContainer
	// Waiting are the containers in back-off, with the time when they may start.
	Waiting []Waiting

	// Done: the pod has ended, and no container will start again.
	Done bool
}

// Kill is one container to stop.
type Kill struct {
	ID, Name, Message, Reason string
}

// Waiting is one container in back-off.
type Waiting struct {
	Name  string
	Until time.Time
	For   time.Duration
}

// The reasons of the condition PodReadyToStartContainers.
const (
	reasonNoSandbox = "no pod sandbox exists"
	reasonMultiple  = "multiple pod sandboxes are ready and need to be reconciled"
	reasonNotReady  = "pod sandbox is not ready"
	reasonNetwork   = "network namespace mode changed and sandbox needs to be recreated"
	reasonNoIP      = "pod sandbox has no IP address"
)

// Sandbox reports whether the pod needs a new sandbox, its attempt number, and the reason.
func Sandbox(pod *corev1.Pod, state *podstate.Pod) (needed bool, attempt uint32, reason string) {
	if state == nil || len(state.Sandboxes) == 0 {
		return true, 0, reasonNoSandbox
	}
	ready := 0
	for _, s := range state.Sandboxes {
		if s.Ready {
			ready++
		}
	}
	newest := state.Sandboxes[0]
	switch {
	case ready > 1:
		return true, newest.Attempt + 1, reasonMultiple
	case !newest.Ready:
		return true, newest.Attempt + 1, reasonNotReady
	case newest.HostNetwork != pod.Spec.HostNetwork:
		return true, newest.Attempt + 1, reasonNetwork
	case !pod.Spec.HostNetwork && newest.Networked && len(newest.IPs) == 0:
		return true, newest.Attempt + 1, reasonNoIP
	}
	return false, newest.Attempt, ""
}

// Next decides.
func Next(in Input) Action {
	var act Action
	if in.State != nil && StartsAnew(in.Pod, in.State) {
		act.Reset = resets(in.Pod, in.State)
		return act
	}
	needed, attempt, reason := Sandbox(in.Pod, in.State)
	if needed {
		act.KillPod, act.CreateSandbox, act.Attempt, act.SandboxReason = true, true, attempt, reason
		act.SandboxChanged = len(in.State.Sandboxes) > 0
		if !restartable(in.Pod) && attempt != 0 && len(in.State.Containers) > 0 {
			act.CreateSandbox, act.Done = false, true
			return act
		}
		todo := false
		for i := range in.Pod.Spec.Containers {
			c := &in.Pod.Spec.Containers[i]
			last := in.State.Newest(c.Name)
			if policyOf(in.Pod, c) == corev1.ContainerRestartPolicyOnFailure && last != nil && last.State == podstate.Exited && last.ExitCode == 0 {
				continue
			}
			todo = true
		}
		if !todo && anyRegular(in) {
			act.CreateSandbox, act.Done = false, true
		}
		return act
	}

	for i := range in.Pod.Spec.EphemeralContainers {
		c := &in.Pod.Spec.EphemeralContainers[i]
		if in.State.Newest(c.Name) == nil {
			act.Ephemeral = append(act.Ephemeral, c)
		}
	}

	if !initialize(in, &act) {
		return act
	}
	keep := 0
	sidecars := act.Start
	for i := range in.Pod.Spec.Containers {
		if regular(in, &in.Pod.Spec.Containers[i], &act) {
			keep++
		}
	}
	if keep == 0 && len(act.Start) == len(sidecars) && len(waitingFor(act, in.Pod.Spec.Containers)) == 0 {
		return Action{KillPod: true, Done: true}
	}
	return act
}

func waitingFor(act Action, containers []corev1.Container) []Waiting {
	var out []Waiting
	for _, w := range act.Waiting {
		if slices.ContainsFunc(containers, func(c corev1.Container) bool { return c.Name == w.Name }) {
			out = append(out, w)
		}
	}
	return out
}

// anyRegular reports whether a regular container was ever created, which means that the initialization has finished.
func anyRegular(in Input) bool {
	return slices.ContainsFunc(in.Pod.Spec.Containers, func(c corev1.Container) bool { return in.State.Newest(c.Name) != nil })
}

// inSandbox returns the newest instance of a container if it was created in the current sandbox: the initialization starts again with a new
// sandbox.
func inSandbox(in Input, name string) *podstate.Container {
	c := in.State.Newest(name)
	if c == nil || c.SandboxID != in.State.Sandboxes[0].ID {
		return nil
	}
	return c
}

// initialize decides on init containers and sidecars. It returns whether to go on with regular containers.
func initialize(in Input, act *Action) bool {
	initialized := slices.ContainsFunc(in.Pod.Spec.Containers, func(c corev1.Container) bool { return inSandbox(in, c.Name) != nil })
	for i := range in.Pod.Spec.InitContainers {
		c := &in.Pod.Spec.InitContainers[i]
		has := inSandbox(in, c.Name)
		if Sidecar(c) {
			switch {
			case has == nil:
				start(in, act, c)
			case has.State == podstate.Running:
				if why := in.Failed[has.ID]; why != "" {
					act.Kill = append(act.Kill, Kill{ID: has.ID, Name: c.Name, Reason: why,
						Message: fmt.Sprintf("Init container %s failed %s probe, will be restarted", c.Name, why)})
					start(in, act, c)
				} else if in.Started(has.ID) {
					continue
				}
			case has.State == podstate.Created:
				start(in, act, c)
			case has.State == podstate.Unknown:
				act.Kill = append(act.Kill, unknown(has))
			default:
				start(in, act, c)
			}
			if !initialized {
				return false
			}
			continue
		}
		if initialized {
			continue
		}
		switch {
		case has == nil || has.State == podstate.Created:
			start(in, act, c)
			return false
		case has.State == podstate.Running:
			return false
		case has.State == podstate.Unknown:
			act.Kill = append(act.Kill, unknown(has))
			return false
		case has.ExitCode != 0:
			if !ShouldRestart(in.Pod, c, has.ExitCode) {
				act.KillPod, act.Done = true, true
				act.Start, act.Waiting = nil, nil
				return false
			}
			start(in, act, c)
			return false
		}
	}
	return true
}

// regular decides on one regular container. It returns whether the container keeps running.
func regular(in Input, c *corev1.Container, act *Action) bool {
	has := in.State.Newest(c.Name)
	if has == nil {
		start(in, act, c)
		return false
	}
	switch has.State {
	case podstate.Created:
		// Created, but not started: the node was interrupted in between. Create another instance.
		start(in, act, c)
		return false
	case podstate.Unknown:
		act.Kill = append(act.Kill, unknown(has))
		start(in, act, c)
		return false
	case podstate.Exited:
		if ShouldRestart(in.Pod, c, has.ExitCode) {
			start(in, act, c)
		}
		return false
	}
	restart := policyOf(in.Pod, c) != corev1.ContainerRestartPolicyNever
	var message string
	why := in.Failed[has.ID]
	switch {
	case has.Note.Hash != 0 && has.Note.Hash != podstate.Hash(c):
		message, restart = fmt.Sprintf("Container %s definition changed", c.Name), true
	case why != "":
		message = fmt.Sprintf("Container %s failed %s probe", c.Name, why)
	default:
		return true
	}
	if restart {
		message += ", will be restarted"
	}
	act.Kill = append(act.Kill, Kill{ID: has.ID, Name: c.Name, Message: message, Reason: why})
	if restart {
		// The next round starts it after it has ended.
		return true
	}
	return false
}

func unknown(c *podstate.Container) Kill {
	return Kill{ID: c.ID, Name: c.Name, Message: fmt.Sprintf("Container is in %q state, try killing it before restart", c.State)}
}

// start adds the container to the list of those to start, or of those in back-off.
func start(in Input, act *Action, c *corev1.Container) {
	if last := in.State.NewestExited(c.Name); last != nil && in.Backoff != nil {
		// A wait longer than the back-off began in the future: the clock was set back since. The pod does not wait for the clock to catch up.
		if until, wait := in.Backoff(c, last); until.After(in.Now) && until.Sub(in.Now) <= wait {
			act.Waiting = append(act.Waiting, Waiting{Name: c.Name, Until: until, For: wait})
			return
		}
	}
	if has := in.State.Newest(c.Name); has != nil && has.State == podstate.Running {
		return
	}
	act.Start = append(act.Start, c)
}

// Sidecar reports whether an init container is a sidecar, which runs beside the pod's containers.
func Sidecar(c *corev1.Container) bool {
	return c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// restartable reports whether any container of the pod may run a second time.
func restartable(pod *corev1.Pod) bool {
	for i := range pod.Spec.Containers {
		if policyOf(pod, &pod.Spec.Containers[i]) != corev1.ContainerRestartPolicyNever {
			return true
		}
	}
	return false
}

func policyOf(pod *corev1.Pod, c *corev1.Container) corev1.ContainerRestartPolicy {
	if c.RestartPolicy != nil {
		return *c.RestartPolicy
	}
	return corev1.ContainerRestartPolicy(pod.Spec.RestartPolicy)
}

// ShouldRestart reports whether a container that ended with the exit code runs again: by its own rules, then its own policy, then the
// pod's.
func ShouldRestart(pod *corev1.Pod, c *corev1.Container, exitCode int32) bool {
	if c.RestartPolicy != nil {
		if rule, ok := ruleOf(c, exitCode); ok && (rule.Action == corev1.ContainerRestartRuleActionRestart ||
			rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers) {
			return true
		}
	}
	policy := policyOf(pod, c)
	// An init container that succeeded does not run again, whatever the pod's policy.
	if exitCode == 0 && c.RestartPolicy == nil && slices.ContainsFunc(pod.Spec.InitContainers,
		func(i corev1.Container) bool { return i.Name == c.Name }) {
		return false
	}
	switch policy {
	case corev1.ContainerRestartPolicyAlways:
		return true
	case corev1.ContainerRestartPolicyOnFailure:
		return exitCode != 0
	}
	return false
}

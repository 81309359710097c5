// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// Reset is one instance of a container that must go before all containers of its pod start again.
type Reset struct {
	ID, Name string
	Kill     bool // it runs
}

// ruleOf returns the container's first rule for an exit code.
func ruleOf(c *corev1.Container, exitCode int32) (corev1.ContainerRestartRule, bool) {
	for _, rule := range c.RestartPolicyRules {
		if rule.ExitCodes == nil {
			continue
		}
		in := slices.Contains(rule.ExitCodes.Values, exitCode)
		switch rule.ExitCodes.Operator {
		case corev1.ContainerRestartRuleOnExitCodesOpIn:
			if in {
				return rule, true
			}
		case corev1.ContainerRestartRuleOnExitCodesOpNotIn:
			if !in {
				return rule, true
			}
		}
	}
	return corev1.ContainerRestartRule{}, false
}

// TakesAll reports whether a container that ended with the exit code restarts all containers of its pod.
func TakesAll(c *corev1.Container, exitCode int32) bool {
	rule, ok := ruleOf(c, exitCode)
	return ok && rule.Action == corev1.ContainerRestartRuleActionRestartAllContainers
}

// CouldTakeAll reports whether any container of the pod could restart all.
func CouldTakeAll(pod *corev1.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r corev1.ContainerRestartRule) bool {
			return r.Action == corev1.ContainerRestartRuleActionRestartAllContainers
		})
	})
}

// StartsAnew reports whether a container has ended that restarts all containers.
func StartsAnew(pod *corev1.Pod, state *podstate.Pod) bool {
	return slices.ContainsFunc(slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers), func(c corev1.Container) bool {
		last := state.Newest(c.Name)
		return last != nil && last.State == podstate.Exited && TakesAll(&c, last.ExitCode)
	})
}

// resets returns all instances of the pod's containers. Those that caused the restart come last: while they exist, the restart is known to
// be under way.
func resets(pod *corev1.Pod, state *podstate.Pod) []Reset {
	var others, sources []Reset
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			for _, has := range state.Containers {
				if has.Name != list[i].Name {
					continue
				}
				r := Reset{ID: has.ID, Name: has.Name, Kill: has.State != podstate.Exited}
				if !r.Kill && TakesAll(&list[i], has.ExitCode) {
					sources = append(sources, r)
				} else {
					others = append(others, r)
				}
			}
		}
	}
	return append(others, sources...)
}

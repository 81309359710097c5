// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package job

import (
	"fmt"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
)

// ruling is the decision of a pod failure policy about one failed pod.
type ruling struct {
	action  batchv1.PodFailurePolicyAction // "" when no rule matched
	ignored bool                           // the failure does not count
	message string                         // why the job fails, when it does
}

// rule returns the ruling of the first rule that matches a failed pod.
func rule(policy *batchv1.PodFailurePolicy, pod *corev1.Pod) ruling {
	if policy == nil {
		return ruling{}
	}
	for i := range policy.Rules {
		r := &policy.Rules[i]
		var why string
		if r.OnExitCodes != nil {
			c := exited(pod, r.OnExitCodes)
			if c == nil {
				continue
			}
			why = fmt.Sprintf("Container %s for pod %s/%s failed with exit code %v matching %v rule at index %d", // upstream's words
				c.Name, pod.Namespace, pod.Name, c.State.Terminated.ExitCode, r.Action, i)
		} else {
			c := conditioned(pod, r.OnPodConditions)
			if c == nil {
				continue
			}
			why = fmt.Sprintf("Pod %s/%s has condition %v matching %v rule at index %d", // upstream's words
				pod.Namespace, pod.Name, c.Type, r.Action, i)
		}
		switch r.Action {
		case batchv1.PodFailurePolicyActionIgnore:
			return ruling{action: r.Action, ignored: true}
		case batchv1.PodFailurePolicyActionFailJob:
			return ruling{action: r.Action, message: why}
		case batchv1.PodFailurePolicyActionFailIndex, batchv1.PodFailurePolicyActionCount:
			return ruling{action: r.Action}
		}
	}
	return ruling{}
}

// exited returns the first container that ended with one of the wanted exit codes; init containers come last.
func exited(pod *corev1.Pod, want *batchv1.PodFailurePolicyOnExitCodesRequirement) *corev1.ContainerStatus {
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.ContainerStatuses, pod.Status.InitContainerStatuses} {
		for i := range statuses {
			s := &statuses[i]
			if s.State.Terminated == nil || s.State.Terminated.ExitCode == 0 || want.ContainerName != nil && *want.ContainerName != s.Name {
				continue
			}
			listed := slices.Contains(want.Values, s.State.Terminated.ExitCode)
			if want.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn && listed || want.Operator == batchv1.PodFailurePolicyOnExitCodesOpNotIn &&
				!listed {
				return s
			}
		}
	}
	return nil
}

func conditioned(pod *corev1.Pod, patterns []batchv1.PodFailurePolicyOnPodConditionsPattern) *corev1.PodCondition {
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		for _, want := range patterns {
			if c.Type == want.Type && c.Status == want.Status {
				return c
			}
		}
	}
	return nil
}

// successful reports whether a job fulfils a rule of its success policy; the message names the rule.
func successful(policy *batchv1.SuccessPolicy, done indexes, completions int) (message string, ok bool) {
	if policy == nil || len(done) == 0 {
		return "", false
	}
	for i, r := range policy.Rules {
		enough := false
		switch {
		case r.SucceededIndexes != nil:
			wanted := parseIndexes(*r.SucceededIndexes, completions)
			n := wanted.shared(done)
			enough = len(wanted) > 0 && (n == wanted.total() || r.SucceededCount != nil && n >= int(*r.SucceededCount))
		case r.SucceededCount != nil:
			enough = done.total() >= int(*r.SucceededCount)
		}
		if enough {
			return fmt.Sprintf("Matched rules at index %d", i), true // upstream's words
		}
	}
	return "", false
}

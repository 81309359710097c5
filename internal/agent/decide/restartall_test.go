// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package decide

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// A container that takes all others with it is the last to go, and all begin again after it.
func TestAllStartAnew(t *testing.T) {
	source := corev1.Container{Name: "source", RestartPolicy: new(corev1.ContainerRestartPolicyNever),
		RestartPolicyRules: []corev1.ContainerRestartRule{{
			Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}},
		}}}
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		RestartPolicy: corev1.RestartPolicyNever, InitContainers: []corev1.Container{{Name: "init"}},
		Containers: []corev1.Container{source, {Name: "other"}},
	}}
	state := func(code int32) *podstate.Pod {
		return &podstate.Pod{
			Sandboxes: []podstate.Sandbox{{ID: "s", Ready: true}},
			Containers: []podstate.Container{
				{ID: "2", Name: "source", SandboxID: "s", State: podstate.Exited, ExitCode: code},
				{ID: "3", Name: "other", SandboxID: "s", State: podstate.Running}, {ID: "1", Name: "init", SandboxID: "s", State: podstate.Exited},
			},
		}
	}
	act := Next(Input{Pod: pod, State: state(42), Started: func(string) bool { return true }})
	want := []Reset{{ID: "3", Name: "other", Kill: true}, {ID: "1", Name: "init"}, {ID: "2", Name: "source"}}
	if diff := cmp.Diff(want, act.Reset); diff != "" || act.KillPod || act.Done || len(act.Start) > 0 {
		t.Errorf("%+v (-want +got)\n%s", act, diff)
	}
	if act := Next(Input{Pod: pod, State: state(1), Started: func(string) bool { return true }}); len(act.Reset) > 0 || len(act.Start) > 0 {
		t.Errorf("with another code: %+v", act)
	}
	after := state(42)
	after.Containers = nil
	if act := Next(Input{Pod: pod, State: after}); len(act.Start) != 1 || act.Start[0].Name != "init" {
		t.Errorf("after all are gone: %+v", act)
	}
	if !ShouldRestart(pod, &source, 42) || ShouldRestart(pod, &source, 1) || !CouldTakeAll(pod) || CouldTakeAll(&corev1.Pod{}) {
		t.Error("the rule is misread")
	}
}

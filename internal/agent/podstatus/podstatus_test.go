// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podstatus

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/golden"
	"github.com/mortise-dev/mortise/internal/podconditions"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(seconds int) time.Time { return epoch.Add(time.Duration(seconds) * time.Second) }

// TestStatuses compares statuses with testdata/NAME.yaml. Each status must also be a fixed
// point: made again from itself, it is the same.
func TestStatuses(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	pod := func(policy corev1.RestartPolicy, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "n", UID: "u", Generation: 1}}
		p.Spec.RestartPolicy = policy
		p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue,
			LastTransitionTime: metav1.NewTime(at(-5))}}
		if change != nil {
			change(p)
		}
		return p
	}
	ready := podstate.Sandbox{ID: "s0", Ready: true, Networked: true, IPs: []string{"fd00::2", "10.0.0.2"}}
	lost := podstate.Sandbox{ID: "s0", Networked: true}
	runs := func(name string, restarts int32) podstate.Container {
		return podstate.Container{ID: "id-" + name, Name: name, SandboxID: "s0", State: podstate.Running, Started: at(1), Image: "i",
			ImageRef: "sha256:1", Note: podstate.Note{RestartCount: restarts}}
	}
	ended := func(name string, code int32, restarts int32) podstate.Container {
		c := runs(name, restarts)
		c.ID = "old-" + name
		c.State, c.Finished, c.ExitCode, c.Reason = podstate.Exited, at(2), code, "Completed"
		if code != 0 {
			c.Reason = "Error"
		}
		return c
	}
	state := func(s podstate.Sandbox, c ...podstate.Container) *podstate.Pod {
		return &podstate.Pod{UID: "u", Sandboxes: []podstate.Sandbox{s}, Containers: c}
	}
	init := func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i"}} }
	sidecar := func(p *corev1.Pod) {
		p.Spec.InitContainers = []corev1.Container{{Name: "s", Image: "i", RestartPolicy: &always}}
	}
	evicted := func(policy corev1.RestartPolicy, change func(*corev1.Pod), state *podstate.Pod, waits string) Input {
		return Input{
			Pod: pod(policy, change), State: state, Terminal: true, Over: true, Reason: "Evicted", Message: "no room",
			Waiting: map[string]corev1.ContainerStateWaiting{waits: {Reason: "CrashLoopBackOff", Message: "back-off"}},
		}
	}
	doubled := func(s corev1.ContainerStatus) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i"}, {Name: "j", Image: "i"}}
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{
				{Name: "i", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}, s,
			}
		}
	}
	gone := func(p *corev1.Pod) {
		now := metav1.NewTime(at(0))
		p.DeletionTimestamp = &now
	}
	exit := func(code int32) corev1.ContainerState {
		return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}
	}
	again := corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "PodInitializing"}}
	for name, in := range map[string]Input{
		"over-not-started":      evicted("Always", nil, nil, "c"),
		"over-backing-off":      evicted("Always", nil, state(lost, ended("c", 1, 0)), "c"),
		"over-succeeded":        evicted("Never", nil, state(lost, ended("c", 0, 0)), ""),
		"over-init-not-started": evicted("Always", doubled(corev1.ContainerStatus{Name: "j", State: again}), nil, ""),
		"over-second-init-tried": evicted("Always", doubled(corev1.ContainerStatus{Name: "j", State: again, LastTerminationState: exit(3)}), nil,
			""),
		"over-init-done": evicted("Always", doubled(corev1.ContainerStatus{Name: "j", State: exit(0)}), nil, ""),
		"over-sidecar-started": evicted("Always", func(p *corev1.Pod) {
			sidecar(p)
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{
				Name: "s", Started: new(true), State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
			}}
		}, nil, ""),
		"over-deleted-backing-off": {Pod: pod("Always", gone), State: state(lost, ended("c", 1, 0)), Terminal: true, Over: true,
			Waiting: map[string]corev1.ContainerStateWaiting{
				"c": {Reason: "CrashLoopBackOff", Message: "back-off"}}},
		"new":                {Pod: pod("Always", nil)},
		"creating-with-init": {Pod: pod("Always", init), State: state(ready)},
		"init-running":       {Pod: pod("Always", init), State: state(ready, runs("i", 0))},
		"init-failed-never":  {Pod: pod("Never", init), State: state(ready, ended("i", 1, 0))},
		"running":            {Pod: pod("Always", nil), State: state(ready, runs("c", 0))},
		"running-not-ready": {Pod: pod("Always", nil), State: state(ready, runs("c", 0)),
			Ready: func(*podstate.Container) bool { return false }},
		"running-gate": {Pod: pod("Always", func(p *corev1.Pod) {
			p.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x/y"}}
		}), State: state(ready, runs("c", 0))},
		"restarted": {Pod: pod("Always", nil), State: state(ready, runs("c", 1), ended("c", 1, 0))},
		"backing-off": {Pod: pod("Always", nil), State: state(ready, ended("c", 1, 0)), Waiting: map[string]corev1.ContainerStateWaiting{
			"c": {Reason: "CrashLoopBackOff", Message: "back-off"}}},
		"pull-error": {Pod: pod("Always", nil), State: state(ready),
			Waiting: map[string]corev1.ContainerStateWaiting{"c": {Reason: "ErrImagePull", Message: "no"}}},
		"succeeded": {Pod: pod("Never", nil), State: state(lost, ended("c", 0, 0))},
		"failed":    {Pod: pod("Never", nil), State: state(lost, ended("c", 2, 0))},
		"deadline": {Pod: pod("Always", nil), State: state(ready, runs("c", 0)), Terminal: true, Reason: "DeadlineExceeded",
			Message: "late"},
		"deleted":         {Pod: pod("Always", gone), State: state(lost, ended("c", 137, 0)), Terminal: true},
		"sidecar-running": {Pod: pod("Always", sidecar), State: state(ready, runs("c", 0), runs("s", 0))},
		"sidecar-not-started": {Pod: pod("Always", sidecar), State: state(ready, runs("s", 0)),
			Started: func(*podstate.Container) bool { return false }},
		"host-network": {Pod: pod("Always", func(p *corev1.Pod) { p.Spec.HostNetwork = true }),
			State: state(podstate.Sandbox{ID: "s0", Ready: true, HostNetwork: true}, runs("c", 0))},
	} {
		t.Run(name, func(t *testing.T) {
			yes := func(*podstate.Container) bool { return true }
			in.HostIPs, in.Scheme, in.Now = []string{"192.168.0.1"}, "containerd", metav1.NewTime(at(10))
			if in.Started == nil {
				in.Started = yes
			}
			if in.Ready == nil {
				in.Ready = yes
			}
			got := Make(in)
			text, err := yaml.Marshal(got)
			if err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name+".yaml")
			golden.Compare(t, path, string(text))
			next := in
			next.Pod = in.Pod.DeepCopy()
			next.Pod.Status = got
			next.Now = metav1.NewTime(at(99))
			if second := Make(next); !Equal(got, second) {
				t.Errorf("not a fixed point:\n%s", cmp.Diff(got, second))
			}
		})
	}
}

// TestDeletedBeforeStart: the last that is said of a pod whose containers never ran is that it failed, unless it is static. Its conditions
// are those of before.
func TestDeletedBeforeStart(t *testing.T) {
	now := metav1.NewTime(at(0))
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", DeletionTimestamp: &now}}
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	for static, want := range map[bool]corev1.PodPhase{false: corev1.PodFailed, true: corev1.PodPending} {
		got := Make(Input{Pod: p, Terminal: true, Over: true, Static: static, Now: now})
		end := got.ContainerStatuses[0].State.Terminated
		if got.Phase != want || end == nil || end.Reason != "ContainerStatusUnknown" || end.ExitCode != 137 {
			t.Errorf("static %t: phase %s, container %+v", static, got.Phase, got.ContainerStatuses[0].State)
		}
		c := podconditions.Find(got.Conditions, corev1.PodReady)
		if c == nil || c.Status != corev1.ConditionFalse || c.Reason != "ContainersNotReady" {
			t.Errorf("static %t: condition Ready is %+v", static, c)
		}
	}
}

// TestRejected: kubelet's rejectPod writes phase, reason, message and start time, and removes its own conditions. A pod of which something
// ran, which a former process of the node admitted, keeps what its status says of its containers.
func TestRejected(t *testing.T) {
	now := metav1.NewTime(at(0))
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", Generation: 3}}
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	p.Status.Phase = corev1.PodPending
	p.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}, {Type: "example.com/gate", Status: corev1.ConditionTrue},
	}
	in := Input{
		Pod: p, HostIPs: []string{"192.0.2.1"}, Terminal: true, Reason: "NodePorts", Message: "Pod was rejected: m", Rejected: true, Now: now,
	}
	want := corev1.PodStatus{
		ObservedGeneration: 3, QOSClass: corev1.PodQOSBestEffort, Phase: corev1.PodFailed, Reason: "NodePorts", Message: "Pod was rejected: m",
		StartTime: &now, Conditions: p.Status.Conditions[1:],
	}
	got := Make(in)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	in.Pod = p.DeepCopy()
	in.Pod.Status, in.Over = got, true
	if second := Make(in); !Equal(got, second) {
		t.Errorf("not a fixed point:\n%s", cmp.Diff(got, second))
	}
	in.Pod = p.DeepCopy()
	in.Pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", RestartCount: 2}}
	if got := Make(in); len(got.ContainerStatuses) != 1 || got.ContainerStatuses[0].RestartCount != 2 || got.Reason != "NodePorts" {
		t.Errorf("status of a pod that ran: %+v", got)
	}
}

func TestEndIsRemembered(t *testing.T) {
	p := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c"}}}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ContainerID: "x://1",
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ContainerID: "x://1", Message: "last words"}}}}
	no := func(*podstate.Container) bool { return false }
	got := Make(Input{Pod: p, Scheme: "x", Started: no, Ready: no,
		State: &podstate.Pod{Containers: []podstate.Container{{ID: "1", Name: "c", State: podstate.Exited}}}})
	if m := got.ContainerStatuses[0].State.Terminated.Message; m != "last words" {
		t.Errorf("message %q: its file is gone, but it was read once", m)
	}
}

func TestQOS(t *testing.T) {
	for text, want := range map[string]corev1.PodQOSClass{
		"{}": corev1.PodQOSBestEffort,
		"{containers: [{resources: {requests: {cpu: 1}}}]}":                                             corev1.PodQOSBurstable,
		"{containers: [{resources: {limits: {cpu: 1, memory: 1Gi}}}]}":                                  corev1.PodQOSGuaranteed,
		"{containers: [{resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 1, memory: 1Gi}}}]}": corev1.PodQOSGuaranteed,
		"{containers: [{resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 500m}}}]}":           corev1.PodQOSBurstable,
		"{containers: [{resources: {limits: {cpu: 1, memory: 1Gi}}}, {name: b}]}":                       corev1.PodQOSBurstable,
		"{initContainers: [{name: i}], containers: [{resources: {limits: {cpu: 1, memory: 1Gi}}}]}":     corev1.PodQOSBurstable,
		"{containers: [{resources: {limits: {nvidia.com/gpu: 1}}}]}":                                    corev1.PodQOSBestEffort,
	} {
		var p corev1.Pod
		if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(text, "\t", " ")), &p.Spec); err != nil {
			t.Fatal(err)
		}
		if got := QOS(&p); got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// TestAddSecond: what a pod in the host's network gets of an address that the host has got.
func TestAddSecond(t *testing.T) {
	for _, c := range []struct{ ips, host, want string }{
		{"192.0.2.1", "192.0.2.1 fd00::1", "192.0.2.1 fd00::1"},
		{"192.0.2.1", "192.0.2.9 fd00::1", "192.0.2.1 fd00::1"},
		{"fd00::1", "fd00::9 192.0.2.9", "fd00::1 192.0.2.9"},
		{"192.0.2.1", "fd00::1 192.0.2.9", "192.0.2.1"}, // of the same family
		{"192.0.2.1", "192.0.2.9", "192.0.2.1"},
		{"192.0.2.1 fd00::1", "192.0.2.9 fd00::9", "192.0.2.1 fd00::1"},
		{"", "192.0.2.9 fd00::9", ""},
	} {
		if got := strings.Join(AddSecond(strings.Fields(c.ips), strings.Fields(c.host)), " "); got != c.want {
			t.Errorf("%q on a host of %q has %q, want %q", c.ips, c.host, got, c.want)
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// lives has pods of one node live as their specs say, all at once: probes of each kind, deadlines, messages, gates, confinement.
func lives(t *testing.T, n *realNode) {
	// A pod of the node's network is asked at the node's address, where the test answers.
	l, err := net.Listen("tcp", nodeAddress+":0")
	if err != nil {
		t.Fatal(err)
	}
	answers := health.NewServer()
	answers.SetServingStatus("web", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
	s := grpc.NewServer()
	grpc_health_v1.RegisterHealthServer(s, answers)
	go func() { _ = s.Serve(l) }()
	t.Cleanup(s.Stop)
	grpcPod := idlePod("grpc")
	grpcPod.Spec.HostNetwork = true
	grpcPod.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(l.Addr().(*net.TCPAddr).Port), Service: new("web")}},
		PeriodSeconds: 1, FailureThreshold: 1,
	}

	// It is asked whether it is ready only when it has started.
	slow := webPod("slow", nil)
	slow.Spec.Containers[0].StartupProbe = &corev1.Probe{
		ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"sh", "-c",
			"echo asked >> /asked; [ $(wc -l < /asked) -ge 3 ]"}}},
		PeriodSeconds: 1, FailureThreshold: 30,
	}
	slow.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/cgi-bin/who", Port: intstr.FromString("http")}},
		PeriodSeconds: 1, FailureThreshold: 30,
	}

	late := idlePod("late")
	late.Spec.ActiveDeadlineSeconds = new(int64(10))

	last := func(name, script string, policy corev1.TerminationMessagePolicy) *corev1.Pod {
		p := idlePod(name)
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0].Command = []string{"sh", "-c", script}
		p.Spec.Containers[0].TerminationMessagePolicy = policy
		return p
	}
	file := last("message", "echo -n 'the disk is full' > /dev/termination-log; exit 3", corev1.TerminationMessageReadFile)
	log := last("log", "echo one; echo two; exit 4", corev1.TerminationMessageFallbackToLogsOnError)
	fine := last("fine", "echo one", corev1.TerminationMessageFallbackToLogsOnError)

	gated := idlePod("gated")
	gated.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "example.com/green"}}

	filter := func(name string, profile corev1.SeccompProfile) *corev1.Pod {
		p := idlePod(name)
		p.Spec.SecurityContext = &corev1.PodSecurityContext{SeccompProfile: &profile}
		return p
	}
	profile := filepath.Join("mortise-test", fmt.Sprint(os.Getpid(), ".json"))
	path := filepath.Join("/var/lib/kubelet/seccomp", profile)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	n.write(t, path, `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}`)
	t.Cleanup(func() {
		if err := os.RemoveAll(filepath.Dir(path)); err != nil {
			t.Error(err)
		}
		for _, dir := range []string{"/var/lib/kubelet/seccomp", "/var/lib/kubelet"} {
			_ = os.Remove(dir) // unless the machine has something in it
		}
	})
	armed := idlePod("armed")
	armed.Spec.SecurityContext = &corev1.PodSecurityContext{
		AppArmorProfile: &corev1.AppArmorProfile{Type: corev1.AppArmorProfileTypeRuntimeDefault}}
	processes := idlePod("processes")
	processes.Spec.HostPID = true

	n.create(t, grpcPod, slow, late, file, log, fine, gated,
		filter("usual", corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault}),
		filter("free", corev1.SeccompProfile{Type: corev1.SeccompProfileTypeUnconfined}),
		filter("own", corev1.SeccompProfile{Type: corev1.SeccompProfileTypeLocalhost, LocalhostProfile: &profile}), armed, processes)

	t.Run("gRPC probe", func(t *testing.T) {
		n.hasEvent(t, "grpc", "Unhealthy", `service unhealthy (responded with "NOT_SERVING")`)
		answers.SetServingStatus("web", grpc_health_v1.HealthCheckResponse_SERVING)
		n.ready(t, "grpc")
		answers.SetServingStatus("web", grpc_health_v1.HealthCheckResponse_NOT_SERVING)
		n.pod(t, "grpc", func(p *corev1.Pod) bool { return !ready(*p) })
	})
	t.Run("startup and HTTP probes", func(t *testing.T) {
		p := n.ready(t, "slow")
		if asked := strings.Count(n.inside(t, "slow", "cat /asked"), "asked"); asked != 3 || p.Status.ContainerStatuses[0].RestartCount != 0 {
			t.Errorf("asked %d times whether it has started, and started again: %s", asked, text(p.Status.ContainerStatuses))
		}
	})
	t.Run("deadline", func(t *testing.T) {
		p := n.pod(t, "late", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if p.Status.Reason != "DeadlineExceeded" || !strings.Contains(p.Status.Message, "active on the node longer than the specified deadline") {
			t.Errorf("status %s", text(p.Status))
		}
		n.pod(t, "late", func(p *corev1.Pod) bool { return p.Status.ContainerStatuses[0].State.Terminated != nil })
	})
	t.Run("messages", func(t *testing.T) {
		for name, want := range map[string]string{"message": "3 Error the disk is full", "log": "4 Error one\ntwo\n", "fine": "0 Completed "} {
			p := n.pod(t, name, func(p *corev1.Pod) bool {
				return (p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded) &&
					p.Status.ContainerStatuses[0].State.Terminated != nil
			})
			end := p.Status.ContainerStatuses[0].State.Terminated
			if got := fmt.Sprint(end.ExitCode, " ", end.Reason, " ", end.Message); got != want {
				t.Errorf("%s ended with %q, want %q", name, got, want)
			}
		}
	})
	t.Run("readiness gate", func(t *testing.T) {
		p := n.pod(t, "gated", func(p *corev1.Pod) bool {
			return len(p.Status.ContainerStatuses) > 0 && p.Status.ContainerStatuses[0].Ready && reasonOf(p, corev1.PodReady) != ""
		})
		if ready(*p) || reasonOf(p, corev1.PodReady) != "ReadinessGatesNotReady" {
			t.Errorf("conditions %s", text(p.Status.Conditions))
		}
		patch := []byte(`{"status":{"conditions":[{"type":"example.com/green","status":"True"}]}}`)
		if _, err := n.c.CoreV1().Pods("default").Patch(t.Context(), "gated", types.StrategicMergePatchType, patch, metav1.PatchOptions{},
			"status"); err != nil {
			t.Fatal(err)
		}
		n.ready(t, "gated")
	})
	t.Run("seccomp", func(t *testing.T) {
		n.ready(t, "usual", "free", "own")
		for name, want := range map[string]string{"usual": "2 made", "free": "0 made", "own": "2 refused"} {
			got := strings.Join(strings.Fields(n.inside(t, name,
				"awk '/^Seccomp:/{print $2}' /proc/self/status; mkdir /tmp-made 2>/dev/null && echo made || echo refused")), " ")
			if got != want {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	})
	t.Run("AppArmor", func(t *testing.T) {
		if enabled, err := os.ReadFile("/sys/module/apparmor/parameters/enabled"); err == nil && enabled[0] == 'Y' {
			n.ready(t, "armed")
			if got := n.inside(t, "armed", "cat /proc/self/attr/current"); !strings.Contains(got, "cri-containerd") {
				t.Errorf("the profile is %q", got)
			}
			return
		}
		p := n.pod(t, "armed", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if p.Status.Reason != "AppArmor" || !strings.HasSuffix(p.Status.Message, "Cannot enforce AppArmor: AppArmor is not enabled on the host") {
			t.Errorf("status %s", text(p.Status))
		}
	})
	t.Run("the node's processes", func(t *testing.T) {
		n.ready(t, "processes")
		if got := n.inside(t, "processes", "ps"); !strings.Contains(got, "mortise") {
			t.Errorf("it sees %s", got)
		}
	})
}

// reasonOf is why a condition is not true; empty: it is, or there is no such condition.
func reasonOf(p *corev1.Pod, kind corev1.PodConditionType) string {
	for _, c := range p.Status.Conditions {
		if c.Type == kind && c.Status != corev1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}

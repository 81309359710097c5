// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// hostilePods are pods that want more than is theirs: each is refused or contained, and something says why.
func hostilePods(t *testing.T, n *realNode) {
	home := t.TempDir()
	secret := filepath.Join(home, "secret")
	n.write(t, secret, "the host's secret\n")
	volume := []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}}}
	whole := []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}

	t.Run("a link out of the volume", func(t *testing.T) {
		// The init container leaves links to the host's file and directory, and a user of each.
		p := idlePod("links")
		p.Spec.Volumes = volume
		p.Spec.InitContainers = []corev1.Container{container("init",
			fmt.Sprintf("ln -s %s /v/file; ln -s %s /v/dir; ln -s ../../../../../../../.. /v/up", secret, home))}
		p.Spec.InitContainers[0].VolumeMounts = whole
		p.Spec.Containers = nil
		for name, sub := range map[string]string{"file": "file", "dir": "dir", "within": "dir/secret", "up": "up/etc", "new": "dir/made"} {
			c := container(name, "cat /m /m/*; while :; do sleep 3600; done")
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: sub}}
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
		n.create(t, p)
		pod := n.pod(t, "links", func(p *corev1.Pod) bool {
			refused := 0
			for _, c := range p.Status.ContainerStatuses {
				if c.State.Waiting != nil && c.State.Waiting.Reason == "CreateContainerConfigError" {
					refused++
				}
			}
			return refused == 5
		})
		for _, c := range pod.Status.ContainerStatuses {
			if c.ContainerID != "" || !strings.Contains(c.State.Waiting.Message, "subPath") {
				t.Errorf("container %s: %s", c.Name, text(c))
			}
		}
		n.hasEvent(t, "links", "Failed", "subPath")
		if _, err := os.Stat(filepath.Join(home, "made")); err == nil {
			t.Error("a directory was made on the host")
		}
	})

	t.Run("a subPath that is computed", func(t *testing.T) {
		p := idlePod("computed")
		p.Spec.Volumes = volume
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "UP", Value: "../../../.."}}
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPathExpr: "$(UP)/etc"}}
		n.create(t, p)
		n.hasEvent(t, "computed", "Failed", "subPath")
		p = idlePod("literal")
		p.Spec.Volumes = volume
		p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: "../etc"}}
		n.refuses(t, p, "must not contain '..'")
	})

	t.Run("a link that is swapped in", func(t *testing.T) {
		// One container changes the name between a directory and a link to the host's, as fast as it can; the others are mounted
		// meanwhile, and say what they see there.
		p := idlePod("race")
		p.Spec.Volumes = volume
		p.Spec.Containers[0] = container("swap", fmt.Sprintf(`
			mkdir /v/good; ln -s %s /v/bad; ln -s good /v/swap
			for i in $(seq 4000); do ln -s %s /v/x; mv -T /v/x /v/swap; ln -s good /v/x; mv -T /v/x /v/swap; done
			while :; do sleep 3600; done`, home, home))
		p.Spec.Containers[0].VolumeMounts = whole
		for i := range 6 {
			c := container(fmt.Sprintf("see%d", i), "cat /m/secret; while :; do sleep 3600; done")
			c.VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/m", SubPath: "swap"}}
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
		n.create(t, p)
		// Who finds the link is refused; who finds the directory is let in. All are in the end.
		n.ready(t, "race")
		for i := range 6 {
			log := n.program.kubectl("logs", "race", "-c", fmt.Sprintf("see%d", i))
			if strings.Contains(log, "the host's secret") {
				t.Errorf("container see%d has seen the host's file", i)
			}
		}
	})

	t.Run("settings and capabilities", func(t *testing.T) {
		p := idlePod("sysctl")
		p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "kernel.msgmax", Value: "65536"}}}
		n.create(t, p)
		pod := n.pod(t, "sysctl", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if pod.Status.Reason != "SysctlForbidden" {
			t.Errorf("the status is %s", text(pod.Status))
		}
		n.hasEvent(t, "sysctl", "SysctlForbidden", `forbidden sysctl: "kernel.msgmax" not allowlisted`)
		p = idlePod("slashes")
		p.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: "net/../../kernel/hostname", Value: "x"}}}
		n.refuses(t, p, "sysctls")

		p = idlePod("capability")
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"EVERYTHING"}}}
		n.create(t, p)
		// The runtime has no such thing to give: the container has what it would have had without.
		n.ready(t, "capability")
		if caps := n.inside(t, "capability", "grep CapEff /proc/self/status"); !strings.Contains(caps, "00000000a80425fb") {
			t.Errorf("a capability that is none gives %q", caps)
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "strict",
			Labels: map[string]string{"pod-security.kubernetes.io/enforce": "baseline"}}}
		if _, err := n.c.CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		p = idlePod("admin")
		p.Namespace = "strict"
		p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{"SYS_ADMIN"}}}
		if _, err := n.c.CoreV1().Pods("strict").Create(t.Context(), p, metav1.CreateOptions{}); !apierrors.IsForbidden(err) ||
			!strings.Contains(err.Error(), "SYS_ADMIN") {
			t.Errorf("SYS_ADMIN in a namespace of the level baseline: %v", err)
		}
	})

	t.Run("control characters", func(t *testing.T) {
		for what, change := range map[string]func(*corev1.Pod){
			"metadata.name":      func(p *corev1.Pod) { p.Name = "a\x1b]0;b\x07" },
			"containers[0].name": func(p *corev1.Pod) { p.Spec.Containers[0].Name = "c\r\n" },
			"volumes[0].name":    func(p *corev1.Pod) { p.Spec.Volumes = []corev1.Volume{{Name: "v\x00"}} },
			"spec.hostname":      func(p *corev1.Pod) { p.Spec.Hostname = "h\nroot" },
			"env[0].name":        func(p *corev1.Pod) { p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "a=\n"}} },
			"metadata.labels":    func(p *corev1.Pod) { p.Labels = map[string]string{"a": "b\x1b"} },
			"hostAliases": func(p *corev1.Pod) {
				p.Spec.HostAliases = []corev1.HostAlias{{IP: "10.0.0.1", Hostnames: []string{"x\n10.0.0.2 y"}}}
			},
			"spec.nodeSelector": func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"a": "b\n"} },
			"dnsConfig.searches": func(p *corev1.Pod) {
				p.Spec.DNSConfig = &corev1.PodDNSConfig{Searches: []string{"x\nnameserver 10.0.0.1"}}
			},
			"containers[0].image": func(p *corev1.Pod) { p.Spec.Containers[0].Image = " \x1b" },
		} {
			p := idlePod("control")
			change(p)
			n.refuses(t, p, what)
		}
		// What a container says of itself is no name; it may be anything, and it must not keep the status from being written.
		p := idlePod("words")
		p.Spec.RestartPolicy = corev1.RestartPolicyNever
		p.Spec.Containers[0] = container("c", `printf 'a\377\376\033[2Jz\000' > /dev/termination-log; exit 3`)
		p.Spec.Containers[0].Command = []string{"sh", "-c", `printf 'a\377\376\033[2Jz\000' > /dev/termination-log; exit 3`}
		n.create(t, p)
		pod := n.pod(t, "words", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
		if end := pod.Status.ContainerStatuses[0].State.Terminated; end == nil || end.ExitCode != 3 || !strings.HasPrefix(end.Message, "a") ||
			!utf8.ValidString(end.Message) {
			t.Errorf("the end is %s", text(pod.Status.ContainerStatuses[0]))
		}
		p = idlePod("program")
		p.Spec.Containers[0].Command = []string{"/no\x1b[2J\nsuch"}
		n.create(t, p)
		n.hasEvent(t, "program", "Failed", "such")
		p = idlePod("prober")
		p.Spec.Containers[0].ReadinessProbe = &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"printf", `not\377 \033[2J; false`}}},
			PeriodSeconds: 1,
		}
		p.Spec.Containers[0].ReadinessProbe.Exec.Command = []string{"sh", "-c", `printf 'not\377 \033[2Jready'; exit 1`}
		n.create(t, p)
		n.hasEvent(t, "prober", "Unhealthy", "ready")
	})

	n.deleteAll(t)
	if left, err := os.ReadFile(secret); err != nil || string(left) != "the host's secret\n" {
		t.Errorf("after the pods the host's file is %q, %v", left, err)
	}
}

// refuses wants the API to refuse a pod, with words that say what of it.
func (n *realNode) refuses(t *testing.T, p *corev1.Pod, words string) {
	t.Helper()
	if _, err := n.c.CoreV1().Pods("default").Create(t.Context(), p, metav1.CreateOptions{}); !apierrors.IsInvalid(err) ||
		!strings.Contains(err.Error(), words) {
		t.Errorf("a pod with wrong %s: %v", words, err)
	}
}

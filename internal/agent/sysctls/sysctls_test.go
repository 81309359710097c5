// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package sysctls

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

func TestCheck(t *testing.T) {
	list, err := New("6.1.0-18-amd64", []string{"kernel.msg*", "net.core.somaxconn", "user.max_user_namespaces"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		spec corev1.PodSpec
		want string
	}{
		{"net.ipv4.tcp_rmem", corev1.PodSpec{}, ""},
		{"net/ipv4/tcp_syncookies", corev1.PodSpec{}, ""},
		{"kernel.msgmax", corev1.PodSpec{}, ""},
		{"net.core.somaxconn", corev1.PodSpec{}, ""},
		{"net.core.rmem_max", corev1.PodSpec{}, `forbidden sysctl: "net.core.rmem_max" not allowlisted`},
		{"vm.swappiness", corev1.PodSpec{}, `forbidden sysctl: "vm.swappiness" not allowlisted`},
		{"net.ipv4.tcp_syncookies", corev1.PodSpec{HostNetwork: true},
			`forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host Net enabled`},
		{"kernel.msgmax", corev1.PodSpec{HostIPC: true}, `forbidden sysctl: "kernel.msgmax" not allowed with host IPC enabled`},
		{"user.max_user_namespaces", corev1.PodSpec{}, `forbidden sysctl: "user.max_user_namespaces" not allowed with host User enabled`},
		{"user.max_user_namespaces", corev1.PodSpec{HostUsers: new(false)}, ""},
	} {
		pod := &corev1.Pod{Spec: c.spec}
		pod.Spec.SecurityContext = &corev1.PodSecurityContext{Sysctls: []corev1.Sysctl{{Name: c.name, Value: "1"}}}
		got := ""
		if err := list.Check(pod); err != nil {
			got = err.Error()
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestOldKernelHasFewer(t *testing.T) {
	list, err := New("4.4.0", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := list.names["net.ipv4.tcp_rmem"]; ok || len(list.names) == 0 {
		t.Errorf("list: %v", list.names)
	}
}

func TestUnknownNamespaceIsRefused(t *testing.T) {
	for _, pattern := range []string{"vm.swappiness", "kernel.*", "fs.file-max"} {
		if _, err := New("6.1", []string{pattern}); err == nil {
			t.Errorf("%s is taken", pattern)
		}
	}
}

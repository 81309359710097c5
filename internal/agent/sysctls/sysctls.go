// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package sysctls decides which sysctls a pod may set: those that are namespaced and harmless to others, and those that the node's
// configuration allows in addition. It is pure; a [List] is safe for concurrent use.
package sysctls

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/component-helpers/node/util/sysctl"
)

// safe are the sysctls that every pod may set, with the first kernel version in which they are namespaced.
func safe() map[string]string {
	return map[string]string{
		"kernel.shm_rmid_forced": "", "net.ipv4.ip_local_port_range": "", "net.ipv4.tcp_syncookies": "", "net.ipv4.ping_group_range": "",
		"net.ipv4.ip_unprivileged_port_start": "", "net.ipv4.ip_local_reserved_ports": "3.16", "net.ipv4.tcp_keepalive_time": "4.5",
		"net.ipv4.tcp_fin_timeout": "4.6", "net.ipv4.tcp_keepalive_intvl": "4.5", "net.ipv4.tcp_keepalive_probes": "4.5",
		"net.ipv4.tcp_rmem": "4.15", "net.ipv4.tcp_wmem": "4.15", "net.ipv4.tcp_slow_start_after_idle": "4.15",
		"net.ipv4.tcp_notsent_lowat": "4.6",
	}
}

// List has the allowed sysctls, by name or by prefix.
type List struct {
	names, prefixes map[string]sysctl.Namespace
}

// New makes the list of the sysctls that are safe with the kernel, and of the configured patterns: names, or prefixes followed by *.
func New(kernel string, unsafe []string) (*List, error) {
	l := &List{names: map[string]sysctl.Namespace{}, prefixes: map[string]sysctl.Namespace{}}
	running, err := version.ParseGeneric(kernel)
	for name, since := range safe() {
		if since == "" || err == nil && running.AtLeast(version.MustParseGeneric(since)) {
			if err := l.add(name); err != nil {
				return nil, err
			}
		}
	}
	for _, pattern := range unsafe {
		if err := l.add(pattern); err != nil {
			return nil, err
		}
	}
	return l, nil
}

func (l *List) add(pattern string) error {
	namespace, name, prefix := sysctl.GetNamespace(pattern)
	switch {
	case namespace == sysctl.UnknownNamespace && prefix:
		// The prefix may be shorter than that of its namespace.
		namespace, _, _ = sysctl.GetNamespace(strings.TrimSuffix(name, "."))
	}
	if namespace == sysctl.UnknownNamespace {
		return fmt.Errorf("the sysctls %q are not known to be namespaced", name) // upstream's words
	}
	if prefix {
		l.prefixes[name] = namespace
	} else {
		l.names[name] = namespace
	}
	return nil
}

// Check returns why a pod may not set its sysctls.
func (l *List) Check(pod *corev1.Pod) error {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	for _, s := range pod.Spec.SecurityContext.Sysctls {
		if err := l.check(sysctl.NormalizeName(s.Name), pod); err != nil {
			return fmt.Errorf("forbidden sysctl: %w", err)
		}
	}
	return nil
}

func (l *List) check(name string, pod *corev1.Pod) error {
	namespace, ok := l.names[name]
	for prefix, n := range l.prefixes {
		if !ok && strings.HasPrefix(name, prefix) {
			namespace, ok = n, true
		}
	}
	hostUsers := pod.Spec.HostUsers == nil || *pod.Spec.HostUsers
	switch {
	case !ok:
		return fmt.Errorf("%q not allowlisted", name) // upstream's words
	case namespace == sysctl.IPCNamespace && pod.Spec.HostIPC, namespace == sysctl.NetNamespace && pod.Spec.HostNetwork,
		namespace == sysctl.UserNamespace && hostUsers:
		return fmt.Errorf("%q not allowed with host %s enabled", name, namespace) // upstream's words
	}
	return nil
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package runconfig turns a pod's definition into requests to the runtime: the configuration of its sandbox and of each of its containers,
// including users, groups, capabilities, cgroups, DNS and /etc/hosts.
//
// It is pure, except that ClusterDNS of Node reads the current servers.
package runconfig

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/podstate"
	"github.com/mortise-dev/mortise/internal/agent/podstatus"
)

// Node has the facts of the node that configurations depend on.
type Node struct {
	LogDir        string
	ClusterDNS    func() []string // nil: none
	ClusterDomain string
	// The machine's own resolver, for pods with dnsPolicy Default.
	HostServers, HostSearches, HostOptions []string

	CgroupDriver runtimeapi.CgroupDriver
	MemoryBytes  int64   // of the machine
	HugePages    []int64 // the sizes in bytes that the machine supports
	Swap         Swap
	Throttle     Throttle
	// LowestOOMScore is the lower limit of scores: a process without CAP_SYS_RESOURCE cannot set one below its own.
	LowestOOMScore int64

	CgroupRoot  string        // the parent of the cgroup of all pods
	Flat        bool          // pods have no cgroups
	NoQuota     bool          // CPU limits have no effect
	QuotaPeriod time.Duration // of CPU limits; zero: a tenth of a second
	// Pinned reports whether a container, or the pod if the container is nil, has CPUs of its own and so no quota; nil: none has.
	Pinned         func(pod *corev1.Pod, c *corev1.Container) bool
	SeccompDefault bool // the runtime's profile applies to pods without one
}

// PodLogDir returns the directory of a pod's logs.
func (n *Node) PodLogDir(pod *corev1.Pod) string {
	return filepath.Join(n.LogDir, fmt.Sprintf("%s_%s_%s", pod.Namespace, pod.Name, pod.UID))
}

// OwnLog reports whether the runtime's path of a container's log is below the directory that the node made for it. The node reads the file
// as root, and everyone who may read the pod's logs gets its contents.
func (n *Node) OwnLog(pod *corev1.Pod, container, path string) bool {
	if !filepath.IsLocal(container) {
		return false
	}
	rest, err := filepath.Rel(filepath.Join(n.PodLogDir(pod), container), path)
	return err == nil && rest != "." && filepath.IsLocal(rest)
}

// ContainerLog returns the path of a container's log below its pod's.
func ContainerLog(container string, restartCount int32) string {
	return filepath.Join(container, fmt.Sprintf("%d.log", restartCount))
}

// Hostname returns the pod's host name and domain.
func (n *Node) Hostname(pod *corev1.Pod) (host, domain string) {
	host = pod.Name
	if pod.Spec.HostnameOverride != nil {
		return *pod.Spec.HostnameOverride, ""
	}
	if pod.Spec.Hostname != "" {
		host = pod.Spec.Hostname
	}
	if len(host) > 63 {
		host = strings.TrimRight(host[:63], "-.")
	}
	if pod.Spec.Subdomain != "" {
		domain = fmt.Sprintf("%s.%s.svc.%s", pod.Spec.Subdomain, pod.Namespace, n.ClusterDomain)
	}
	return host, domain
}

// Sandbox returns the configuration of the pod's sandbox. Its users are those of the machine, or a range mapped to them.
func (n *Node) Sandbox(pod *corev1.Pod, attempt uint32, users *runtimeapi.UserNamespace) (*runtimeapi.PodSandboxConfig, error) {
	ports, err := portMappings(pod)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.PodSandboxConfig{
		Metadata:     &runtimeapi.PodSandboxMetadata{Name: pod.Name, Namespace: pod.Namespace, Uid: string(pod.UID), Attempt: attempt},
		Labels:       podstate.SandboxLabels(pod),
		Annotations:  pod.Annotations,
		DnsConfig:    n.DNS(pod),
		LogDirectory: n.PodLogDir(pod),
		PortMappings: ports,
	}
	if !pod.Spec.HostNetwork {
		host, domain := n.Hostname(pod)
		out.Hostname = host
		if pod.Spec.SetHostnameAsFQDN != nil && *pod.Spec.SetHostnameAsFQDN && domain != "" {
			out.Hostname = host + "." + domain
			if len(out.Hostname) > 64 {
				// upstream's words
				return nil, fmt.Errorf("failed to construct FQDN from Pod hostname and cluster domain, FQDN %s is too long (64 characters is the max, %d characters requested)", out.Hostname, len(out.Hostname))
			}
		}
	}
	security := &runtimeapi.LinuxSandboxSecurityContext{
		Privileged:       privileged(pod),
		Seccomp:          &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
		NamespaceOptions: namespaces(pod, "", users),
	}
	linux := &runtimeapi.LinuxPodSandboxConfig{CgroupParent: n.CgroupParent(pod), SecurityContext: security, Sysctls: map[string]string{}}
	linux.Resources, linux.Overhead = n.sandboxResources(pod)
	if sc := pod.Spec.SecurityContext; sc != nil {
		for _, s := range sc.Sysctls {
			linux.Sysctls[s.Name] = s.Value
		}
		security.RunAsUser, security.RunAsGroup = number(sc.RunAsUser), number(sc.RunAsGroup)
		security.SupplementalGroups = groups(pod)
		security.SelinuxOptions = selinux(sc.SELinuxOptions)
	}
	out.Linux = linux
	return out, nil
}

// portMappings returns the host ports of the pod. Authors of pods choose the address, and network plug-ins write it into rules, so
// portMappings rejects anything but a plain address.
func portMappings(pod *corev1.Pod) ([]*runtimeapi.PortMapping, error) {
	var out []*runtimeapi.PortMapping
	for _, c := range pod.Spec.Containers {
		for _, p := range c.Ports {
			if a, err := netip.ParseAddr(p.HostIP); p.HostIP != "" && (err != nil || a.Zone() != "") {
				return nil, fmt.Errorf("port %d of container %q: its hostIP %q is no address", p.ContainerPort, c.Name, p.HostIP)
			}
			protocol := runtimeapi.Protocol_TCP
			switch p.Protocol {
			case corev1.ProtocolUDP:
				protocol = runtimeapi.Protocol_UDP
			case corev1.ProtocolSCTP:
				protocol = runtimeapi.Protocol_SCTP
			}
			out = append(out, &runtimeapi.PortMapping{Protocol: protocol, ContainerPort: p.ContainerPort, HostPort: p.HostPort, HostIp: p.HostIP})
		}
	}
	return out, nil
}

func privileged(pod *corev1.Pod) bool {
	is := func(c corev1.Container) bool {
		return c.SecurityContext != nil && c.SecurityContext.Privileged != nil && *c.SecurityContext.Privileged
	}
	return slices.ContainsFunc(pod.Spec.Containers, is) || slices.ContainsFunc(pod.Spec.InitContainers, is)
}

// namespaces returns which namespaces belong to the pod.
func namespaces(pod *corev1.Pod, target string, users *runtimeapi.UserNamespace) *runtimeapi.NamespaceOption {
	out := &runtimeapi.NamespaceOption{Network: runtimeapi.NamespaceMode_POD, Pid: runtimeapi.NamespaceMode_CONTAINER,
		Ipc: runtimeapi.NamespaceMode_POD, UsernsOptions: users}
	if pod.Spec.HostNetwork {
		out.Network = runtimeapi.NamespaceMode_NODE
	}
	if pod.Spec.HostIPC {
		out.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case pod.Spec.HostPID:
		out.Pid = runtimeapi.NamespaceMode_NODE
	case pod.Spec.ShareProcessNamespace != nil && *pod.Spec.ShareProcessNamespace:
		out.Pid = runtimeapi.NamespaceMode_POD
	case target != "":
		out.Pid, out.TargetId = runtimeapi.NamespaceMode_TARGET, target
	}
	return out
}

// CgroupParent returns the cgroup of the pod's containers, under kubelet's name.
func (n *Node) CgroupParent(pod *corev1.Pod) string {
	if n.Flat {
		return n.CgroupRoot
	}
	class := ""
	switch cmp.Or(pod.Status.QOSClass, podstatus.QOS(pod)) {
	case corev1.PodQOSBestEffort:
		class = "besteffort"
	case corev1.PodQOSBurstable:
		class = "burstable"
	}
	if n.CgroupDriver == runtimeapi.CgroupDriver_SYSTEMD {
		uid := strings.ReplaceAll(string(pod.UID), "-", "_")
		// The name of a slice includes its parents; those of a root come first.
		prefix, path := "", "/"
		for part := range strings.SplitSeq(strings.Trim(n.CgroupRoot, "/"), "/") {
			if part != "" {
				prefix += strings.ReplaceAll(part, "-", "_") + "-"
				path = filepath.Join(path, strings.TrimSuffix(prefix, "-")+".slice")
			}
		}
		path = filepath.Join(path, prefix+"kubepods.slice")
		if class == "" {
			return filepath.Join(path, fmt.Sprintf("%skubepods-pod%s.slice", prefix, uid))
		}
		return filepath.Join(path, fmt.Sprintf("%skubepods-%s.slice", prefix, class),
			fmt.Sprintf("%skubepods-%s-pod%s.slice", prefix, class, uid))
	}
	return filepath.Join("/", n.CgroupRoot, "kubepods", class, "pod"+string(pod.UID))
}

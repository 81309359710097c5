// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package runconfig

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// The limits of a resolv.conf.
const maxServers = 3

// dnsPolicy returns the policy in effect: None, ClusterFirst or Default.
func dnsPolicy(pod *corev1.Pod) corev1.DNSPolicy {
	switch policy := pod.Spec.DNSPolicy; {
	case policy == corev1.DNSClusterFirstWithHostNet, (policy == corev1.DNSClusterFirst || policy == "") && !pod.Spec.HostNetwork:
		return corev1.DNSClusterFirst
	case policy == corev1.DNSNone:
		return policy
	}
	return corev1.DNSDefault
}

// clusterDNS returns the current DNS servers of the cluster.
func (n *Node) clusterDNS() []string {
	if n.ClusterDNS == nil {
		return nil
	}
	return n.ClusterDNS()
}

// LacksClusterDNS reports whether a pod requests the cluster's DNS and there is none: it gets the machine's resolvers instead.
func (n *Node) LacksClusterDNS(pod *corev1.Pod) bool {
	return dnsPolicy(pod) == corev1.DNSClusterFirst && len(n.clusterDNS()) == 0
}

// DNS returns the pod's resolver configuration.
func (n *Node) DNS(pod *corev1.Pod) *runtimeapi.DNSConfig {
	out := &runtimeapi.DNSConfig{}
	policy, clusterDNS := dnsPolicy(pod), n.clusterDNS()
	if policy == corev1.DNSClusterFirst && len(clusterDNS) == 0 {
		policy = corev1.DNSDefault
	}
	switch policy {
	case corev1.DNSNone:
	case corev1.DNSClusterFirst:
		out.Servers = append(out.Servers, clusterDNS...)
		if d := n.ClusterDomain; d != "" {
			out.Searches = append(out.Searches, pod.Namespace+".svc."+d, "svc."+d, d)
		}
		out.Searches = append(out.Searches, n.HostSearches...)
		out.Options = []string{"ndots:5"}
	default:
		out.Servers = append(out.Servers, n.HostServers...)
		out.Searches = append(out.Searches, n.HostSearches...)
		out.Options = append(out.Options, n.HostOptions...)
	}
	if own := pod.Spec.DNSConfig; own != nil {
		out.Servers = unique(append(out.Servers, own.Nameservers...))
		out.Searches = unique(append(out.Searches, own.Searches...))
		out.Options = mergeOptions(out.Options, own.Options)
	}
	out.Servers = out.Servers[:min(len(out.Servers), maxServers)]
	return out
}

func unique(list []string) []string {
	seen := map[string]bool{}
	var out []string
	for _, s := range list {
		if !seen[s] {
			seen[s] = true
			out = append(out, s)
		}
	}
	return out
}

// mergeOptions replaces options by the pod's own options of the same name.
func mergeOptions(options []string, own []corev1.PodDNSConfigOption) []string {
	named := map[string]bool{}
	var out []string
	for _, o := range own {
		named[o.Name] = true
	}
	for _, o := range options {
		if name, _, _ := strings.Cut(o, ":"); !named[name] {
			out = append(out, o)
		}
	}
	for _, o := range own {
		if o.Value != nil && *o.Value != "" {
			out = append(out, o.Name+":"+*o.Value)
		} else {
			out = append(out, o.Name)
		}
	}
	return out
}

// ParseResolvConf parses a resolv.conf.
func ParseResolvConf(text string) (servers, searches, options []string) {
	for line := range strings.Lines(text) {
		if i := strings.IndexAny(line, "#;"); i >= 0 {
			line = line[:i]
		}
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		switch fields[0] {
		case "nameserver":
			servers = append(servers, fields[1])
		case "search", "domain":
			searches = nil
			for _, s := range fields[1:] {
				if s != "." {
					s = strings.TrimSuffix(s, ".")
				}
				searches = append(searches, s)
			}
		case "options":
			options = append(options, fields[1:]...)
		}
	}
	return servers, searches, options
}

// Hosts returns the contents of a pod's /etc/hosts. The argument hostFile is the machine's own, for pods in its network.
func (n *Node) Hosts(pod *corev1.Pod, podIPs []string, hostFile string) string {
	var out strings.Builder
	if pod.Spec.HostNetwork {
		out.WriteString("# Kubernetes-managed hosts file (host network).\n")
		out.WriteString(hostFile)
	} else {
		out.WriteString("# Kubernetes-managed hosts file.\n")
		out.WriteString("127.0.0.1\tlocalhost\n")
		out.WriteString("::1\tlocalhost ip6-localhost ip6-loopback\n")
		out.WriteString("fe00::0\tip6-localnet\n")
		out.WriteString("fe00::0\tip6-mcastprefix\n")
		out.WriteString("fe00::1\tip6-allnodes\n")
		out.WriteString("fe00::2\tip6-allrouters\n")
		host, domain := n.Hostname(pod)
		for _, ip := range podIPs {
			if domain != "" {
				fmt.Fprintf(&out, "%s\t%s.%s\t%s\n", ip, host, domain, host)
			} else {
				fmt.Fprintf(&out, "%s\t%s\n", ip, host)
			}
		}
	}
	if len(pod.Spec.HostAliases) > 0 {
		out.WriteString("\n# Entries added by HostAliases.\n")
		for _, a := range pod.Spec.HostAliases {
			fmt.Fprintf(&out, "%s\t%s\n", a.IP, strings.Join(a.Hostnames, "\t"))
		}
	}
	return out.String()
}

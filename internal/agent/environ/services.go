// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package environ

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// ServiceVars returns the variables for services: always for "kubernetes" in the namespace default, and with service links (the default)
// for the services of the pod's namespace.
func ServiceVars(pod *corev1.Pod, services []*corev1.Service) []Var {
	links := pod.Spec.EnableServiceLinks == nil || *pod.Spec.EnableServiceLinks
	var chosen []*corev1.Service
	for _, s := range services {
		if s.Spec.ClusterIP == "" || s.Spec.ClusterIP == corev1.ClusterIPNone {
			continue
		}
		master := s.Namespace == corev1.NamespaceDefault && s.Name == "kubernetes"
		own := links && s.Namespace == pod.Namespace
		switch {
		case own:
			chosen = append(chosen, s)
		case master && !slices.ContainsFunc(services, func(o *corev1.Service) bool {
			return links && o.Namespace == pod.Namespace && o.Name == s.Name && o.Namespace != s.Namespace
		}):
			chosen = append(chosen, s)
		}
	}
	slices.SortFunc(chosen, func(a, b *corev1.Service) int { return strings.Compare(a.Name, b.Name) })
	var out []Var
	for _, s := range chosen {
		out = append(out, ofService(s)...)
	}
	return out
}

func ofService(s *corev1.Service) []Var {
	if len(s.Spec.Ports) == 0 {
		return nil
	}
	name := envName(s.Name)
	ip := s.Spec.ClusterIP
	out := []Var{
		{name + "_SERVICE_HOST", ip},
		{name + "_SERVICE_PORT", strconv.Itoa(int(s.Spec.Ports[0].Port))},
	}
	for _, p := range s.Spec.Ports {
		if p.Name != "" {
			out = append(out, Var{name + "_SERVICE_PORT_" + envName(p.Name), strconv.Itoa(int(p.Port))})
		}
	}
	for i, p := range s.Spec.Ports {
		protocol := string(corev1.ProtocolTCP)
		if p.Protocol != "" {
			protocol = string(p.Protocol)
		}
		port := strconv.Itoa(int(p.Port))
		url := strings.ToLower(protocol) + "://" + net.JoinHostPort(ip, port)
		if i == 0 {
			out = append(out, Var{name + "_PORT", url})
		}
		prefix := fmt.Sprintf("%s_PORT_%s_%s", name, port, strings.ToUpper(protocol))
		out = append(out,
			Var{prefix, url},
			Var{prefix + "_PROTO", strings.ToLower(protocol)},
			Var{prefix + "_PORT", port},
			Var{prefix + "_ADDR", ip})
	}
	return out
}

func envName(name string) string {
	return strings.ToUpper(strings.ReplaceAll(name, "-", "_"))
}

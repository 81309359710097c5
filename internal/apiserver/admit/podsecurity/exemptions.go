// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podsecurity

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/pod-security-admission/api"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
)

// exempted reports whether the plug-in ignores the request because of its namespace, user or runtime class.
func (p *plugin) exempted(a *admit.Attributes) bool {
	switch {
	case slices.Contains(p.exempt.Namespaces, a.Namespace):
		p.spare(a, "namespace")
	case a.User != nil && a.User.GetName() != "" && slices.Contains(p.exempt.Usernames, a.User.GetName()):
		p.spare(a, "user")
	default:
		return false
	}
	return true
}

// exemptClass reports whether pods of the runtime class are not looked at.
func (p *plugin) exemptClass(spec *corev1.PodSpec) bool {
	return spec.RuntimeClassName != nil && *spec.RuntimeClassName != "" && slices.Contains(p.exempt.RuntimeClasses, *spec.RuntimeClassName)
}

func (p *plugin) spare(a *admit.Attributes, why string) {
	p.meters.spared(a)
	a.Annotate(api.AuditAnnotationPrefix+api.ExemptionReasonAnnotationKey, why)
}

// warnIgnored warns a user who labels an exempt namespace that the labels have no effect.
func (p *plugin) warnIgnored(a *admit.Attributes, ns *corev1.Namespace, wanted api.Policy) {
	if wanted.FullyPrivileged() || wanted.Equivalent(&p.defaults) {
		return
	}
	var said []string
	for _, mode := range []struct {
		name, level, version string
		wanted               api.LevelVersion
	}{
		{"enforce", api.EnforceLevelLabel, api.EnforceVersionLabel, wanted.Enforce},
		{"audit", api.AuditLevelLabel, api.AuditVersionLabel, wanted.Audit},
		{"warn", api.WarnLevelLabel, api.WarnVersionLabel, wanted.Warn},
	} {
		_, level := ns.Labels[mode.level]
		_, version := ns.Labels[mode.version]
		if mode.wanted.Level != api.LevelPrivileged && (level || version) {
			said = append(said, mode.name+"="+mode.wanted.String())
		}
	}
	// upstream's words
	a.Warn(fmt.Sprintf("namespace %q is exempt from Pod Security, and the policy (%s) will be ignored", ns.Name, strings.Join(said, ", ")))
}

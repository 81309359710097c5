// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/upstream"
)

// TemplateWarnings are Warnings for a pod template, nil if there is none.
func TemplateWarnings(path *field.Path, template *corev1.PodTemplateSpec) []string {
	if template == nil {
		return nil
	}
	return Warnings(path, &template.Spec, &template.ObjectMeta)
}

// Warnings returns warnings about a pod that is valid but hardly intended: deprecated fields and fields without effect, duplicates,
// overlaps. path leads to the pod, nil if it is the whole object.
func Warnings(path *field.Path, spec *corev1.PodSpec, meta *metav1.ObjectMeta) []string {
	w := &warner{path: path, spec: spec, meta: meta}
	w.nodeLabels()
	w.annotations()
	w.volumes()
	w.duplicates()
	w.containers()
	w.ports()
	if g := spec.TerminationGracePeriodSeconds; g != nil && *g < 0 {
		w.add(path.Child("spec", "terminationGracePeriodSeconds"), "must be >= 0; negative values are invalid and will be treated as 1")
	}
	if a := spec.Affinity; a != nil {
		at := path.Child("spec", "affinity")
		if p := a.PodAffinity; p != nil {
			w.affinity(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution, at.Child("podAffinity"))
		}
		if p := a.PodAntiAffinity; p != nil {
			w.affinity(p.RequiredDuringSchedulingIgnoredDuringExecution, p.PreferredDuringSchedulingIgnoredDuringExecution,
				at.Child("podAntiAffinity"))
		}
	}
	if d := spec.DNSConfig; d != nil {
		for i, ip := range d.Nameservers {
			w.out = append(w.out, validation.GetWarningsForIP(path.Child("spec", "dnsConfig", "nameservers").Index(i), ip)...)
		}
	}
	for i, alias := range spec.HostAliases {
		w.out = append(w.out, validation.GetWarningsForIP(path.Child("spec", "hostAliases").Index(i).Child("ip"), alias.IP)...)
	}
	return w.out
}

// warner gathers warnings about one pod.
type warner struct {
	path *field.Path
	spec *corev1.PodSpec
	meta *metav1.ObjectMeta
	out  []string
}

func (w *warner) add(at *field.Path, format string, args ...any) {
	w.out = append(w.out, at.String()+": "+fmt.Sprintf(format, args...))
}

// deprecatedNodeLabels are the deprecated node labels, with the warning for each.
var deprecatedNodeLabels = map[string]string{
	"app.kubernetes.io/created-by":                  `deprecated since v1.9`,
	"beta.kubernetes.io/arch":                       `deprecated since v1.14; use "kubernetes.io/arch" instead`,
	"beta.kubernetes.io/instance-type":              `deprecated since v1.17; use "node.kubernetes.io/instance-type" instead`,
	"beta.kubernetes.io/os":                         `deprecated since v1.14; use "kubernetes.io/os" instead`,
	"failure-domain.beta.kubernetes.io/region":      `deprecated since v1.17; use "topology.kubernetes.io/region" instead`,
	"failure-domain.beta.kubernetes.io/zone":        `deprecated since v1.17; use "topology.kubernetes.io/zone" instead`,
	"node-role.kubernetes.io/master":                `use "node-role.kubernetes.io/control-plane" instead`,
	"scheduler.alpha.kubernetes.io/preferAvoidPods": `deprecated since v1.22; use Taints and Tolerations instead`,
}

// NodeLabelWarning returns the warning about a node label, if there is one.
func NodeLabelWarning(key string) (string, bool) {
	msg, ok := deprecatedNodeLabels[key]
	return msg, ok
}

func (w *warner) nodeLabels() {
	spec := w.path.Child("spec")
	for key := range w.spec.NodeSelector {
		if msg, ok := NodeLabelWarning(key); ok {
			w.add(spec.Child("nodeSelector").Key(key), "%s", msg)
		}
	}
	if w.spec.Affinity != nil && w.spec.Affinity.NodeAffinity != nil {
		n, at := w.spec.Affinity.NodeAffinity, spec.Child("affinity", "nodeAffinity")
		if r := n.RequiredDuringSchedulingIgnoredDuringExecution; r != nil {
			for i, term := range r.NodeSelectorTerms {
				w.out = append(w.out, NodeTermWarnings(term, false,
					at.Child("requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms").Index(i))...)
			}
		}
		for i, term := range n.PreferredDuringSchedulingIgnoredDuringExecution {
			w.out = append(w.out, NodeTermWarnings(term.Preference, true,
				at.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child("preference"))...)
		}
	}
	for i, c := range w.spec.TopologySpreadConstraints {
		at := spec.Child("topologySpreadConstraints").Index(i)
		if msg, ok := NodeLabelWarning(c.TopologyKey); ok {
			w.add(at.Child("topologyKey"), "%s is %s", c.TopologyKey, msg)
		}
		if c.LabelSelector == nil {
			w.add(at.Child("labelSelector"), "a null labelSelector results in matching no pod")
		}
	}
}

// NodeTermWarnings returns warnings about a node selector's term.
func NodeTermWarnings(term corev1.NodeSelectorTerm, values bool, path *field.Path) []string {
	var out []string
	for i, e := range term.MatchExpressions {
		at := path.Child("matchExpressions").Index(i)
		if msg, ok := NodeLabelWarning(e.Key); ok {
			out = append(out, fmt.Sprintf("%s: %s is %s", at.Child("key"), e.Key, msg))
		}
		if !values {
			continue
		}
		for j, value := range e.Values {
			for _, msg := range validation.IsValidLabelValue(value) {
				out = append(out, fmt.Sprintf("%s: %s is invalid, %s", at.Child("values").Index(j), value, msg))
			}
		}
	}
	return out
}

func (w *warner) annotations() {
	at := w.path.Child("metadata", "annotations")
	for _, a := range []struct{ key, text string }{
		{"scheduler.alpha.kubernetes.io/critical-pod", `non-functional in v1.16+; use the "priorityClassName" field instead`},
		{"security.alpha.kubernetes.io/sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
		{"security.alpha.kubernetes.io/unsafe-sysctls", `non-functional in v1.11+; use the "sysctls" field instead`},
	} {
		if _, ok := w.meta.Annotations[a.key]; ok {
			w.add(at.Key(a.key), "%s", a.text)
		}
	}
}

func (w *warner) volumes() {
	for i := range w.spec.Volumes {
		v, at := &w.spec.Volumes[i], w.path.Child("spec", "volumes").Index(i)
		dead := func(set bool, name, text string) {
			if set {
				w.add(at.Child(name), "%s", text)
			}
		}
		dead(v.PhotonPersistentDisk != nil, "photonPersistentDisk", "deprecated in v1.11, non-functional in v1.16+")
		gitRepo := "deprecated in v1.11, and disabled by default in v1.33+"
		if upstream.Gate("GitRepoVolumeDriver") {
			gitRepo = "deprecated in v1.11"
		}
		dead(v.GitRepo != nil, "gitRepo", gitRepo)
		dead(v.ScaleIO != nil, "scaleIO", "deprecated in v1.16, non-functional in v1.22+")
		dead(v.Flocker != nil, "flocker", "deprecated in v1.22, non-functional in v1.25+")
		dead(v.StorageOS != nil, "storageOS", "deprecated in v1.22, non-functional in v1.25+")
		dead(v.Quobyte != nil, "quobyte", "deprecated in v1.22, non-functional in v1.25+")
		dead(v.Glusterfs != nil, "glusterfs", "deprecated in v1.25, non-functional in v1.26+")
		if v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil {
			w.out = append(w.out, ClaimWarnings(at.Child("ephemeral", "volumeClaimTemplate", "spec"), &v.Ephemeral.VolumeClaimTemplate.Spec)...)
		}
		dead(v.CephFS != nil, "cephfs", "deprecated in v1.28, non-functional in v1.31+")
		dead(v.RBD != nil, "rbd", "deprecated in v1.28, non-functional in v1.31+")
	}
	for i := range w.spec.Volumes {
		w.out = append(w.out, overlaps(&w.spec.Volumes[i])...)
	}
}

// ClaimWarnings returns warnings about the spec of a persistent volume claim.
func ClaimWarnings(path *field.Path, spec *corev1.PersistentVolumeClaimSpec) []string {
	var out []string
	for _, l := range []struct {
		name string
		list corev1.ResourceList
	}{{"requests", spec.Resources.Requests}, {"limits", spec.Resources.Limits}} {
		if q := l.list[corev1.ResourceStorage]; fractional(q) {
			out = append(out, fmt.Sprintf("%s: fractional byte value %q is invalid, must be an integer",
				path.Child("resources", l.name).Key(string(corev1.ResourceStorage)), q.String()))
		}
	}
	return out
}

// fractional reports whether an amount of bytes is not a whole number.
func fractional(q apiresource.Quantity) bool { return q.MilliValue()%1000 != 0 }

func (w *warner) duplicates() {
	seen := map[string]bool{}
	for i, alias := range w.spec.HostAliases {
		if seen[alias.IP] {
			w.add(w.path.Child("spec", "hostAliases").Index(i).Child("ip"), "duplicate ip %q", alias.IP)
		}
		seen[alias.IP] = true
	}
	clear(seen)
	for i, s := range w.spec.ImagePullSecrets {
		if seen[s.Name] {
			w.add(w.path.Child("spec", "imagePullSecrets").Index(i).Child("name"), "duplicate name %q", s.Name)
		}
		seen[s.Name] = true
	}
	for i, s := range w.spec.ImagePullSecrets {
		if s.Name == "" {
			w.add(w.path.Child("spec", "imagePullSecrets").Index(i).Child("name"), "invalid empty name %q", s.Name)
		}
	}
	for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, ok := w.spec.Overhead[name]; ok && fractional(q) {
			w.add(w.path.Child("spec", "overhead").Key(string(name)), "fractional byte value %q is invalid, must be an integer", q.String())
		}
	}
	if s := w.spec.SecurityContext; s == nil || s.SeccompProfile == nil {
		const key = corev1.SeccompPodAnnotationKey
		if _, ok := w.meta.Annotations[key]; ok {
			w.add(w.path.Child("metadata", "annotations").Key(key), `non-functional in v1.27+; use the "seccompProfile" field instead`)
		}
	}
}

// each calls f on every container with its path.
func (w *warner) each(f func(c *corev1.Container, at *field.Path)) {
	spec := w.path.Child("spec")
	for i := range w.spec.InitContainers {
		f(&w.spec.InitContainers[i], spec.Child("initContainers").Index(i))
	}
	for i := range w.spec.Containers {
		f(&w.spec.Containers[i], spec.Child("containers").Index(i))
	}
	for i := range w.spec.EphemeralContainers {
		f((*corev1.Container)(&w.spec.EphemeralContainers[i].EphemeralContainerCommon), spec.Child("ephemeralContainers").Index(i))
	}
}

func (w *warner) containers() {
	var profile *corev1.AppArmorProfile
	if w.spec.SecurityContext != nil {
		profile = w.spec.SecurityContext.AppArmorProfile
	}
	annotations := w.path.Child("metadata", "annotations")
	w.each(func(c *corev1.Container, at *field.Path) {
		if c.SecurityContext == nil || c.SecurityContext.SeccompProfile == nil {
			key := corev1.SeccompContainerAnnotationKeyPrefix + c.Name
			if _, ok := w.meta.Annotations[key]; ok {
				w.add(annotations.Key(key), `non-functional in v1.27+; use the "seccompProfile" field instead`)
			}
		}
		if w.path != nil && (c.SecurityContext == nil || c.SecurityContext.AppArmorProfile == nil) {
			key := corev1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
			if value, ok := w.meta.Annotations[key]; ok && (profile == nil || !same(profile, appArmorOf(value))) {
				w.add(annotations.Key(key), `deprecated since v1.30; use the "appArmorProfile" field instead`)
			}
		}
		for _, name := range []corev1.ResourceName{corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
			if q, ok := c.Resources.Limits[name]; ok && fractional(q) {
				w.add(at.Child("resources", "limits").Key(string(name)), "fractional byte value %q is invalid, must be an integer", q.String())
			}
			if q, ok := c.Resources.Requests[name]; ok && fractional(q) {
				w.add(at.Child("resources", "requests").Key(string(name)), "fractional byte value %q is invalid, must be an integer", q.String())
			}
		}
		seen := map[string]bool{}
		for i, env := range c.Env {
			ref := "$(" + env.Name + ")"
			if seen[env.Name] && (env.ValueFrom != nil || env.Value == ref || !strings.Contains(env.Value, ref)) {
				w.add(at.Child("env").Index(i), "hides previous definition of %q, which may be dropped when using apply", env.Name)
			}
			seen[env.Name] = true
		}
	})
}

func (w *warner) ports() {
	type namedPort struct {
		at   *field.Path
		port corev1.ContainerPort
	}
	all := map[string][]namedPort{}
	w.each(func(c *corev1.Container, path *field.Path) {
		for i, port := range c.Ports {
			at := path.Child("ports").Index(i)
			if port.HostIP != "" && port.HostPort == 0 {
				w.add(at, "hostIP set without hostPort: %s", portText(port))
			}
			key := fmt.Sprintf("%d/%s", port.ContainerPort, port.Protocol)
			for _, other := range all[key] {
				switch anyIP, otherAny := port.HostIP == "", other.port.HostIP == ""; {
				case port.HostIP == other.port.HostIP && port.HostPort == other.port.HostPort:
					w.add(at, "duplicate port definition with %s", other.at)
				case port.HostPort == 0 || other.port.HostPort == 0:
					w.add(at, "overlapping port definition with %s", other.at)
				case port.HostPort == other.port.HostPort && anyIP != otherAny:
					w.add(at, "dangerously ambiguous port definition with %s", other.at)
				}
			}
			all[key] = append(all[key], namedPort{at, port})
		}
	})
	names := map[string]*field.Path{}
	w.each(func(c *corev1.Container, path *field.Path) {
		for i, port := range c.Ports {
			at := path.Child("ports").Index(i)
			switch other := names[port.Name]; {
			case port.Name == "":
			case other != nil:
				w.add(at, "duplicate port name %q with %s, services and probes that select ports by name will use %s", port.Name, other, other)
			default:
				names[port.Name] = at
			}
		}
	})
}

// portText formats a port as upstream prints its own type, which has no string form.
func portText(p corev1.ContainerPort) string {
	return fmt.Sprintf("{Name:%s HostPort:%d ContainerPort:%d Protocol:%s HostIP:%s}", p.Name, p.HostPort, p.ContainerPort, p.Protocol,
		p.HostIP)
}

func (w *warner) affinity(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm, at *field.Path) {
	const text = "a null labelSelector results in matching no pod"
	for i, t := range required {
		if t.LabelSelector == nil {
			w.add(at.Child("requiredDuringSchedulingIgnoredDuringExecution").Index(i).Child("labelSelector"), text)
		}
	}
	for i, t := range preferred {
		if t.PodAffinityTerm.LabelSelector == nil {
			w.add(at.Child("preferredDuringSchedulingIgnoredDuringExecution").Index(i).Child("podAffinityTerm", "labelSelector"), text)
		}
	}
}

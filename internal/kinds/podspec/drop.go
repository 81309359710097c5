// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podspec

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/kinds/upstream"
)

// DropOff drops the fields of disabled feature gates from a pod's spec, unless the old spec, nil on create, already has them.
func DropOff(spec, old *corev1.PodSpec) {
	for _, f := range gated {
		if upstream.Gate(f.gate) || !f.used(spec) || old != nil && f.used(old) {
			continue
		}
		f.visit(spec, &sweep{clear: true})
	}
}

// sweep visits fields, and records whether any is set; with clear it also clears them.
type sweep struct{ clear, found bool }

// gate visits one field.
func gate[T any](s *sweep, p **T) {
	if *p == nil {
		return
	}
	s.found = true
	if s.clear {
		*p = nil
	}
}

// DropOffTemplate is DropOff for pod templates; either may be nil.
func DropOffTemplate(template, old *corev1.PodTemplateSpec) {
	if template == nil {
		return
	}
	DropInitAnnotations(template.Annotations)
	if old == nil {
		DropOff(&template.Spec, nil)
		return
	}
	DropOff(&template.Spec, &old.Spec)
}

// DropInitAnnotations drops the annotations that once held init containers, and that clients must not bring back.
func DropInitAnnotations(annotations map[string]string) {
	for _, key := range initAnnotations {
		delete(annotations, key)
	}
}

// initAnnotations once held init containers and their statuses.
var initAnnotations = []string{
	"pod.alpha.kubernetes.io/init-container-statuses",
	"pod.alpha.kubernetes.io/init-containers",
	"pod.beta.kubernetes.io/init-container-statuses",
	"pod.beta.kubernetes.io/init-containers",
}

// gatedFields are a gate and its fields.
type gatedFields struct {
	gate  string
	visit func(spec *corev1.PodSpec, s *sweep)
}

// used reports whether a spec sets any of the fields.
func (f gatedFields) used(spec *corev1.PodSpec) bool {
	var s sweep
	f.visit(spec, &s)
	return s.found
}

// gated are the gates that can be off, with their fields.
var gated = []gatedFields{
	{"AtomicWriteVolumeUserFields", volumeUsers},
	{"ClusterTrustBundleProjection", func(spec *corev1.PodSpec, s *sweep) {
		eachSource(spec, func(p *corev1.VolumeProjection) { gate(s, &p.ClusterTrustBundle) })
	}},
	{"ContainerStopSignals", func(spec *corev1.PodSpec, s *sweep) {
		eachContainer(spec, func(c *corev1.Container) {
			if c.Lifecycle == nil || c.Lifecycle.StopSignal == nil {
				return
			}
			gate(s, &c.Lifecycle.StopSignal)
			if *c.Lifecycle == (corev1.Lifecycle{}) {
				c.Lifecycle = nil
			}
		})
	}},
	{"EmptyDirVolumeMode", func(spec *corev1.PodSpec, s *sweep) {
		for i := range spec.Volumes {
			if e := spec.Volumes[i].EmptyDir; e != nil {
				gate(s, &e.Mode)
			}
		}
	}},
	{"EnvFiles", func(spec *corev1.PodSpec, s *sweep) {
		eachContainer(spec, func(c *corev1.Container) {
			for i := range c.Env {
				if c.Env[i].ValueFrom != nil {
					gate(s, &c.Env[i].ValueFrom.FileKeyRef)
				}
			}
		})
	}},
	{"EvictionRequestAPI", func(spec *corev1.PodSpec, s *sweep) {
		if len(spec.EvictionResponders) == 0 {
			return
		}
		s.found = true
		if s.clear {
			spec.EvictionResponders = nil
		}
	}},
	{"GRPCContainerProbeTLS", func(spec *corev1.PodSpec, s *sweep) {
		eachProbe(spec, func(p *corev1.Probe) {
			if p.GRPC != nil {
				gate(s, &p.GRPC.Mode)
			}
		})
	}},
	{"GenericWorkload", func(spec *corev1.PodSpec, s *sweep) { gate(s, &spec.SchedulingGroup) }},
	{"H2CContainerProbe", func(spec *corev1.PodSpec, s *sweep) {
		eachProbe(spec, func(p *corev1.Probe) {
			if p.HTTPGet != nil {
				gate(s, &p.HTTPGet.Protocol)
			}
		})
		eachContainer(spec, func(c *corev1.Container) {
			if c.Lifecycle == nil {
				return
			}
			for _, h := range []*corev1.LifecycleHandler{c.Lifecycle.PostStart, c.Lifecycle.PreStop} {
				if h != nil && h.HTTPGet != nil {
					gate(s, &h.HTTPGet.Protocol)
				}
			}
		})
	}},
	{"PodCertificateRequest", func(spec *corev1.PodSpec, s *sweep) {
		eachSource(spec, func(p *corev1.VolumeProjection) { gate(s, &p.PodCertificate) })
	}},
	{"VolumeBindMountOptions", func(spec *corev1.PodSpec, s *sweep) {
		eachContainer(spec, func(c *corev1.Container) {
			for i := range c.VolumeMounts {
				if len(c.VolumeMounts[i].BindMountOptions) == 0 {
					continue
				}
				s.found = true
				if s.clear {
					c.VolumeMounts[i].BindMountOptions = nil
				}
			}
		})
	}},
}

// volumeUsers visits the owners of files in volumes.
func volumeUsers(spec *corev1.PodSpec, s *sweep) {
	items := func(list []corev1.KeyToPath) {
		for i := range list {
			gate(s, &list[i].User)
		}
	}
	downward := func(list []corev1.DownwardAPIVolumeFile) {
		for i := range list {
			gate(s, &list[i].User)
		}
	}
	for i := range spec.Volumes {
		switch v := &spec.Volumes[i]; {
		case v.Secret != nil:
			gate(s, &v.Secret.DefaultUser)
			items(v.Secret.Items)
		case v.ConfigMap != nil:
			gate(s, &v.ConfigMap.DefaultUser)
			items(v.ConfigMap.Items)
		case v.DownwardAPI != nil:
			gate(s, &v.DownwardAPI.DefaultUser)
			downward(v.DownwardAPI.Items)
		case v.Projected != nil:
			gate(s, &v.Projected.DefaultUser)
		}
	}
	eachSource(spec, func(p *corev1.VolumeProjection) {
		switch {
		case p.Secret != nil:
			items(p.Secret.Items)
		case p.ConfigMap != nil:
			items(p.ConfigMap.Items)
		case p.DownwardAPI != nil:
			downward(p.DownwardAPI.Items)
		case p.ServiceAccountToken != nil:
			gate(s, &p.ServiceAccountToken.User)
		case p.ClusterTrustBundle != nil:
			gate(s, &p.ClusterTrustBundle.User)
		case p.PodCertificate != nil:
			gate(s, &p.PodCertificate.User)
		}
	})
}

func eachProbe(spec *corev1.PodSpec, f func(p *corev1.Probe)) {
	eachContainer(spec, func(c *corev1.Container) {
		for _, p := range []*corev1.Probe{c.LivenessProbe, c.ReadinessProbe, c.StartupProbe} {
			if p != nil {
				f(p)
			}
		}
	})
}

func eachSource(spec *corev1.PodSpec, f func(p *corev1.VolumeProjection)) {
	for i := range spec.Volumes {
		if p := spec.Volumes[i].Projected; p != nil {
			for j := range p.Sources {
				f(&p.Sources[j])
			}
		}
	}
}

// DropOffStatus is DropOff for a pod's status.
func DropOffStatus(status, old *corev1.PodStatus) {
	if !upstream.Gate("DRANodeAllocatableResources") && old.NodeAllocatableResourceClaimStatuses == nil {
		status.NodeAllocatableResourceClaimStatuses = nil
	}
	if !upstream.Gate("CSIVolumeHealth") && len(old.VolumeHealth) == 0 {
		status.VolumeHealth = nil
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package runconfig

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/mortise-dev/mortise/internal/agent/environ"
	"github.com/mortise-dev/mortise/internal/agent/podstate"
)

// ContainerInput has the inputs of a container's configuration.
type ContainerInput struct {
	Pod          *corev1.Pod
	Container    *corev1.Container
	ImageRef     string
	RestartCount int32
	Env          []environ.Var
	Mounts       []*runtimeapi.Mount
	// The image's user, as the runtime reports it: a number or a name. An image with neither runs as root.
	ImageUser *int64
	ImageName string
	// Users are the pod's users: those of the machine, or a range mapped to them.
	Users *runtimeapi.UserNamespace
	// TargetID is the container whose processes an ephemeral container can see.
	TargetID string
}

// Container returns the configuration of one container.
func (n *Node) Container(in ContainerInput) (*runtimeapi.ContainerConfig, error) {
	c := in.Container
	security, err := n.security(in)
	if err != nil {
		return nil, err
	}
	annotations, err := podstate.ContainerAnnotations(in.Pod, c, in.RestartCount)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.ContainerConfig{
		Metadata:    &runtimeapi.ContainerMetadata{Name: c.Name, Attempt: uint32(in.RestartCount)},
		Image:       &runtimeapi.ImageSpec{Image: in.ImageRef, UserSpecifiedImage: c.Image},
		Command:     environ.ExpandAll(c.Command, in.Env),
		Args:        environ.ExpandAll(c.Args, in.Env),
		WorkingDir:  c.WorkingDir,
		Labels:      podstate.ContainerLabels(in.Pod, c),
		Annotations: annotations,
		Mounts:      in.Mounts,
		LogPath:     ContainerLog(c.Name, in.RestartCount),
		Stdin:       c.Stdin,
		StdinOnce:   c.StdinOnce,
		Tty:         c.TTY,
		Linux:       &runtimeapi.LinuxContainerConfig{Resources: n.Resources(in.Pod, c), SecurityContext: security},
	}
	if c.Lifecycle != nil && c.Lifecycle.StopSignal != nil {
		if signal, ok := runtimeapi.Signal_value[string(*c.Lifecycle.StopSignal)]; ok {
			out.StopSignal = runtimeapi.Signal(signal)
		}
	}
	// Mounts keep their owners from the pod's point of view.
	for _, m := range out.Mounts {
		m.UidMappings, m.GidMappings = in.Users.GetUids(), in.Users.GetGids()
	}
	for _, v := range in.Env {
		out.Envs = append(out.Envs, &runtimeapi.KeyValue{Key: v.Name, Value: []byte(v.Value)})
	}
	return out, nil
}

func (n *Node) security(in ContainerInput) (*runtimeapi.LinuxContainerSecurityContext, error) {
	own := in.Container.SecurityContext
	if own == nil {
		own = &corev1.SecurityContext{}
	}
	common := in.Pod.Spec.SecurityContext
	if common == nil {
		common = &corev1.PodSecurityContext{}
	}
	user := cmp.Or(own.RunAsUser, common.RunAsUser)
	if err := nonRoot(in, cmp.Or(own.RunAsNonRoot, common.RunAsNonRoot), user); err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		Capabilities:       capabilities(own.Capabilities),
		Privileged:         own.Privileged != nil && *own.Privileged,
		ReadonlyRootfs:     own.ReadOnlyRootFilesystem != nil && *own.ReadOnlyRootFilesystem,
		SelinuxOptions:     selinux(cmp.Or(own.SELinuxOptions, common.SELinuxOptions)),
		RunAsUser:          number(user),
		RunAsGroup:         number(cmp.Or(own.RunAsGroup, common.RunAsGroup)),
		SupplementalGroups: groups(in.Pod),
		NamespaceOptions:   namespaces(in.Pod, in.TargetID, in.Users),
		NoNewPrivs:         own.AllowPrivilegeEscalation != nil && !*own.AllowPrivilegeEscalation,
		MaskedPaths:        maskedPaths(own.ProcMount),
		ReadonlyPaths:      readonlyPaths(own.ProcMount),
		Seccomp:            n.seccomp(cmp.Or(own.SeccompProfile, common.SeccompProfile)),
		Apparmor:           apparmor(cmp.Or(own.AppArmorProfile, common.AppArmorProfile)),
	}
	if out.RunAsUser == nil {
		uid, name := imageUser(in)
		out.RunAsUser, out.RunAsUsername = number(uid), name
	}
	if p := common.SupplementalGroupsPolicy; p != nil {
		out.SupplementalGroupsPolicy = runtimeapi.SupplementalGroupsPolicy(runtimeapi.SupplementalGroupsPolicy_value[string(*p)])
	}
	return out, nil
}

func nonRoot(in ContainerInput, asked *bool, user *int64) error {
	if asked == nil || !*asked {
		return nil
	}
	pod := fmt.Sprintf("%s_%s(%s)", in.Pod.Name, in.Pod.Namespace, in.Pod.UID)
	if user != nil {
		if *user == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy (pod: %q, container: %s)", pod, in.Container.Name)
		}
		return nil
	}
	uid, name := imageUser(in)
	if uid == nil {
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root (pod: %q, container: %s)",
			name, pod, in.Container.Name)
	}
	if *uid == 0 {
		return fmt.Errorf("container has runAsNonRoot and image will run as root (pod: %q, container: %s)", pod, in.Container.Name)
	}
	// A runtime may truncate a number that is too large to one that means root.
	if errs := validation.IsValidUserID(*uid); len(errs) > 0 {
		return fmt.Errorf("container has runAsNonRoot and image has an invalid user id (%d). (Must be 1-(%d)): %s (pod: %q, container: %s)",
			*uid, math.MaxInt32, strings.Join(errs, "; "), pod, in.Container.Name)
	}
	return nil
}

// imageUser returns the user of the image: a number or a name, never both. An image without a user runs as root.
func imageUser(in ContainerInput) (*int64, string) {
	switch {
	case in.ImageUser != nil:
		return in.ImageUser, ""
	case in.ImageName != "":
		return nil, in.ImageName
	}
	return new(int64), ""
}

func number(n *int64) *runtimeapi.Int64Value {
	if n == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *n}
}

func groups(pod *corev1.Pod) []int64 {
	sc := pod.Spec.SecurityContext
	if sc == nil {
		return nil
	}
	var out []int64
	if sc.FSGroup != nil {
		out = append(out, *sc.FSGroup)
	}
	return append(out, sc.SupplementalGroups...)
}

func selinux(o *corev1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

func capabilities(c *corev1.Capabilities) *runtimeapi.Capability {
	if c == nil {
		return nil
	}
	out := &runtimeapi.Capability{}
	for _, name := range c.Add {
		out.AddCapabilities = append(out.AddCapabilities, string(name))
	}
	for _, name := range c.Drop {
		out.DropCapabilities = append(out.DropCapabilities, string(name))
	}
	return out
}

func (n *Node) seccomp(p *corev1.SeccompProfile) *runtimeapi.SecurityProfile {
	if p == nil && n.SeccompDefault {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	}
	if p == nil {
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
	}
	switch p.Type {
	case corev1.SeccompProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case corev1.SeccompProfileTypeLocalhost:
		out := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost}
		if p.LocalhostProfile != nil {
			out.LocalhostRef = "/var/lib/kubelet/seccomp/" + *p.LocalhostProfile
		}
		return out
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

func apparmor(p *corev1.AppArmorProfile) *runtimeapi.SecurityProfile {
	if p == nil {
		return nil
	}
	switch p.Type {
	case corev1.AppArmorProfileTypeRuntimeDefault:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
	case corev1.AppArmorProfileTypeLocalhost:
		out := &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost}
		if p.LocalhostProfile != nil {
			out.LocalhostRef = *p.LocalhostProfile
		}
		return out
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}
}

func unmasked(p *corev1.ProcMountType) bool {
	return p != nil && *p == corev1.UnmaskedProcMount
}

func maskedPaths(p *corev1.ProcMountType) []string {
	if unmasked(p) {
		return []string{}
	}
	return []string{
		"/proc/asound", "/proc/acpi", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/timer_list", "/proc/timer_stats", "/proc/sched_debug", "/proc/scsi", "/sys/firmware", "/sys/devices/virtual/powercap",
	}
}

func readonlyPaths(p *corev1.ProcMountType) []string {
	if unmasked(p) {
		return []string{}
	}
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// HasMount reports whether the container itself mounts something at the path.
func HasMount(c *corev1.Container, path string) bool {
	return slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == path })
}

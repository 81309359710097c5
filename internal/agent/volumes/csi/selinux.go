// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"cmp"
	"fmt"
	"os"
	"slices"

	corev1 "k8s.io/api/core/v1"
)

// The parts of a label that a pod leaves out.
const (
	labelUser = "system_u"
	labelRole = "object_r"
	labelType = "container_file_t"
)

// machineHasSELinux reports whether the kernel enforces or watches SELinux labels.
func machineHasSELinux() bool {
	_, err := os.Stat("/sys/fs/selinux/enforce")
	return err == nil
}

// label returns the SELinux label with which the volume is mounted, so that its files need no new labels; empty: none. The CSIDriver must
// allow it, and all containers that mount the volume must have one label with a level.
func (p *caller) label(v *volume) string {
	if v.ephemeral || v.block || v.class == nil || v.class.Spec.SELinuxMount == nil || !*v.class.Spec.SELinuxMount || !p.selinux() {
		return ""
	}
	pod := v.pod.Spec.SecurityContext
	if pod != nil && pod.SELinuxChangePolicy != nil && *pod.SELinuxChangePolicy == corev1.SELinuxChangePolicyRecursive {
		return ""
	}
	var found []string
	for _, list := range [][]corev1.Container{v.pod.Spec.InitContainers, v.pod.Spec.Containers} {
		for i := range list {
			c := &list[i]
			if !slices.ContainsFunc(c.VolumeMounts, func(m corev1.VolumeMount) bool { return m.Name == v.spec.Volume.Name }) {
				continue
			}
			options := (*corev1.SELinuxOptions)(nil)
			if pod != nil {
				options = pod.SELinuxOptions
			}
			if c.SecurityContext != nil && c.SecurityContext.SELinuxOptions != nil {
				options = c.SecurityContext.SELinuxOptions
			}
			if options == nil || options.Level == "" {
				return ""
			}
			// As for the runtime, the type is the process's; files have the type of containers' files.
			found = append(found, fmt.Sprintf("%s:%s:%s:%s", cmp.Or(options.User, labelUser), labelRole, labelType, options.Level))
		}
	}
	slices.Sort(found)
	if found = slices.Compact(found); len(found) != 1 {
		return ""
	}
	return found[0]
}

// withLabel adds the mount option of a label.
func withLabel(options []string, label string) []string {
	if label == "" {
		return options
	}
	return append(slices.Clone(options), fmt.Sprintf("context=%q", label))
}

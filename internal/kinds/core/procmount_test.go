// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestProcMount: a container has /proc as the runtime masks it, or without a mask if the pod has users of its own.
func TestProcMount(t *testing.T) {
	const hostUsers = "procMount: Invalid value: \"Unmasked\": `hostUsers` must be false to use `Unmasked`"
	yes, no := true, false
	for _, c := range []struct {
		name      string
		mount     corev1.ProcMountType
		hostUsers *bool
		want      string
	}{
		{"default", corev1.DefaultProcMount, nil, ""},
		{"default with users of its own", corev1.DefaultProcMount, &no, ""},
		{"unmasked", corev1.UnmaskedProcMount, nil, hostUsers},
		{"unmasked with the host's users", corev1.UnmaskedProcMount, &yes, hostUsers},
		{"unmasked with users of its own", corev1.UnmaskedProcMount, &no, ""},
		{"of another case", "unmasked", &no, "procMount: Unsupported value: \"unmasked\": supported values: \"Default\", \"Unmasked\""},
		{"empty", "", nil, "procMount: Unsupported value: \"\""},
	} {
		for _, where := range []string{"containers", "initContainers"} {
			t.Run(c.name+" in "+where, func(t *testing.T) {
				p := pod("p", func(p *corev1.Pod) {
					p.Spec = corev1.PodSpec{HostUsers: c.hostUsers, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
					to := &p.Spec.Containers[0]
					if where == "initContainers" {
						p.Spec.InitContainers = []corev1.Container{{Name: "i", Image: "i"}}
						to = &p.Spec.InitContainers[0]
					}
					to.SecurityContext = &corev1.SecurityContext{ProcMount: &c.mount}
				})
				d := Pod(nil)
				d.Hub().Default(p)
				d.Strategy.PrepareCreate(context.Background(), p)
				var said []string
				for _, err := range d.Strategy.Validate(context.Background(), p) {
					said = append(said, err.Error())
				}
				right := c.want == "" && len(said) == 0 || c.want != "" && len(said) == 1 &&
					strings.HasPrefix(said[0], "spec."+where+"[0].securityContext."+c.want)
				if !right {
					t.Errorf("validation says %q, want %q", slices.Sorted(slices.Values(said)), c.want)
				}
			})
		}
	}
}

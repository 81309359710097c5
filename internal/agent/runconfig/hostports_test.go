// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package runconfig

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// TestHostIPsAreAddresses asks for ports of the host at addresses and at what is none, which a network plug-in would write into its rules.
func TestHostIPsAreAddresses(t *testing.T) {
	for text, good := range map[string]bool{
		"": true, "127.0.0.1": true, "0.0.0.0": true, "::": true, "fd00::1": true,
		"fe80::1%eth0; drop": false, "10.0.0.1 drop": false, "10.0.0.1\n-A INPUT -j DROP": false, "-j": false, "10.0.0.0/8": false,
		"localhost": false, "010.0.0.1": false,
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c",
			Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: 8080, HostIP: text}}}}}}
		out, err := (&Node{}).Sandbox(pod, 0, nil)
		switch {
		case good && (err != nil || len(out.PortMappings) != 1 || out.PortMappings[0].HostIp != text):
			t.Errorf("%q: %v, %v", text, out, err)
		case !good && (err == nil || !strings.Contains(err.Error(), "is no address")):
			t.Errorf("%q is taken: %v", text, err)
		}
	}
}

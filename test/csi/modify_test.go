// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// A claim's VolumeAttributesClass is that of its volume from the start, and changes with the claim, by the unmodified provisioner and
// resizer. What the driver refuses is told, and a next choice replaces it. A class in use stays until no claim has it.
func TestModify(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	dir := t.TempDir()
	socket := filepath.Join(dir, "csi.sock")
	start(t, nil, "hostpathplugin", "--drivername", driverName, "--nodeid", "node-0", "--statedir", filepath.Join(dir, "volumes"),
		"--endpoint", "unix://"+socket, "--enable-topology=false", "--enable-controller-modify-volume",
		"--accepted-mutable-parameter-names=iops")
	c.sidecars(socket, "csi-provisioner", "csi-resizer")
	var classes []string
	for class, parameter := range map[string]string{"silver": "iops", "gold": "iops", "red": "color"} {
		classes = append(classes, fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata: {name: %s}
driverName: %s
parameters: {%s: %[1]s}
`, class, driverName, parameter))
	}
	c.apply(strings.Join(classes, "---\n"))
	c.apply(claim("data", "1Gi", "") + "  volumeAttributesClassName: silver\n")
	c.wait("jsonpath={.status.currentVolumeAttributesClassName}=silver", "pvc/data")
	choose := func(class string) {
		c.kubectl("patch", "pvc", "data", "-p", fmt.Sprintf(`{"spec":{"volumeAttributesClassName":%q}}`, class))
	}
	choose("red")
	c.heard("data", "VolumeModifyFailed", func(message string) bool { return strings.Contains(message, "color") })
	choose("gold")
	c.wait("jsonpath={.status.currentVolumeAttributesClassName}=gold", "pvc/data")
	volume := c.kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
	c.wait("jsonpath={.spec.volumeAttributesClassName}=gold", "pv/"+volume)
	c.kubectl("delete", "volumeattributesclass", "gold", "silver", "red", "--wait=false")
	c.wait("delete", "volumeattributesclass/silver", "volumeattributesclass/red")
	if got := c.kubectl("get", "volumeattributesclass", "-o", "jsonpath={.items[*].metadata.name}"); got != "gold" {
		t.Errorf("the classes are %s", got)
	}
	c.kubectl("delete", "pvc", "data")
	c.wait("delete", "volumeattributesclass/gold")
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"fmt"
	"strings"
	"testing"
)

// claim returns a claim; source is what its volume is filled from, or empty.
func claim(name, size, source string) string {
	if source != "" {
		source = "\n  dataSource: " + source
	}
	return fmt.Sprintf(`apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s}
spec:
  storageClassName: mock
  accessModes: [ReadWriteOnce]
  resources: {requests: {storage: %s}}%s
`, name, size, source)
}

// pod returns a pod on a node that uses a claim.
func pod(name, node, claim string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s}
spec:
  nodeSelector: {kubernetes.io/hostname: %s}
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: i}]
  volumes: [{name: v, persistentVolumeClaim: {claimName: %s}}]
`, name, node, claim)
}

// The life of a volume: provisioned, attached, wanted elsewhere, expanded, copied by a snapshot and by a clone, detached, deleted.
func TestLife(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.snapshots()
	c.drive("csi-attacher", "csi-provisioner", "csi-resizer", "csi-snapshotter", "snapshot-controller")

	c.apply(claim("data", "1Gi", ""))
	c.wait("jsonpath={.status.phase}=Bound", "pvc/data")
	volume := c.kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}")
	if got := c.kubectl("get", "pv", volume, "-o", "jsonpath={.metadata.finalizers} {.metadata.annotations}"); !strings.Contains(got,
		"external-provisioner.volume.kubernetes.io/finalizer") || !strings.Contains(got, `"pv.kubernetes.io/provisioned-by":"`+driverName+`"`) {
		t.Errorf("the volume has finalizers and annotations %s", got)
	}
	name := "kubernetes.io/csi/" + driverName + "^" + c.kubectl("get", "pv", volume, "-o", "jsonpath={.spec.csi.volumeHandle}")

	c.apply(pod("first", "node-0", "data"))
	c.wait("jsonpath={.status.volumesAttached[0].name}="+name, "node/node-0")
	c.wait("condition=Ready", "pod/first")
	attachment := c.kubectl("get", "volumeattachment", "-o", "jsonpath={.items[*].metadata.name}")
	if got := c.kubectl("get", "volumeattachment", attachment, "-o",
		"jsonpath={.spec.attacher} {.spec.nodeName} {.spec.source.persistentVolumeName} {.status.attached}"); got !=
		fmt.Sprintf("%s node-0 %s true", driverName, volume) {
		t.Errorf("the attachment is %s", got)
	}
	c.said("first", "SuccessfulAttachVolume", fmt.Sprintf("AttachVolume.Attach succeeded for volume %q ", volume))
	c.wait("condition=Unused=false", "pvc/data")

	c.apply(pod("second", "node-1", "data"))
	c.said("second", "FailedAttachVolume", fmt.Sprintf("Waiting for detach for volume %q Volume is already used by pod(s) first", volume))

	c.kubectl("patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"2Gi"}}}}`)
	c.wait("jsonpath={.status.capacity.storage}=2Gi", "pvc/data")
	c.said("data", "ExternalExpanding", "waiting for an external controller to expand this PVC")

	c.apply(fmt.Sprintf(`apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: mock}
driver: %s
deletionPolicy: Delete
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: copy}
spec: {volumeSnapshotClassName: mock, source: {persistentVolumeClaimName: data}}
`, driverName))
	c.wait("jsonpath={.status.readyToUse}=true", "volumesnapshot/copy")
	c.apply(claim("restored", "2Gi", "{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: copy}") + "---\n" +
		claim("cloned", "2Gi", "{kind: PersistentVolumeClaim, name: data}"))
	c.wait("jsonpath={.status.phase}=Bound", "pvc/restored")
	c.wait("jsonpath={.status.phase}=Bound", "pvc/cloned")

	c.kubectl("delete", "pod", "first")
	c.wait("jsonpath={.status.volumesAttached[0].name}="+name, "node/node-1")
	c.wait("delete", "volumeattachment/"+attachment)
	c.kubectl("delete", "pod", "second")
	c.kubectl("delete", "volumesnapshot,pvc", "--all")
	c.wait("delete", "volumeattachment", "--all")
	c.wait("delete", "pv", "--all")
	if got := c.kubectl("get", "nodes", "-o", "jsonpath={.items[*].status.volumesAttached}"); got != "" && got != "[] []" {
		t.Errorf("the nodes still list %s", got)
	}
	if got := c.kubectl("get", "--raw", "/metrics"); !strings.Contains(got, "storage_operation_duration_seconds_count{migrated=\"false\","+
		"operation_name=\"volume_attach\",status=\"success\",volume_plugin=\"kubernetes.io/csi:"+driverName+"\"} 2") {
		t.Error("the metrics do not count two attachments")
	}
}

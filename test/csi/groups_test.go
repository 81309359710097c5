// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
)

// Claims are copied together by a group snapshot, as the unmodified snapshotter and snapshot-controller do it; each member is an ordinary
// snapshot that a claim can be filled from, and all go with the group.
func TestGroupSnapshot(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.snapshots()
	c.define("groupsnapshot.storage.k8s.io", "volumegroupsnapshotclasses", "volumegroupsnapshotcontents", "volumegroupsnapshots")
	dir := t.TempDir()
	socket := filepath.Join(dir, "csi.sock")
	start(t, nil, "hostpathplugin", "--drivername", driverName, "--nodeid", "node-0", "--statedir", filepath.Join(dir, "volumes"),
		"--endpoint", "unix://"+socket, "--enable-topology=false")
	c.sidecars(socket, "csi-provisioner", "csi-snapshotter", "snapshot-controller")

	c.apply(claim("data", "1Gi", "") + "---\n" + claim("log", "1Gi", "") + "---\n" + claim("other", "1Gi", ""))
	for _, name := range []string{"data", "log", "other"} {
		c.wait("jsonpath={.status.phase}=Bound", "pvc/"+name)
	}
	c.kubectl("label", "pvc", "data", "log", "app=db")
	c.apply(fmt.Sprintf(`apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: mock}
driver: %s
deletionPolicy: Delete
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {name: both}
spec: {volumeGroupSnapshotClassName: mock, source: {selector: {matchLabels: {app: db}}}}
`, driverName))
	c.wait("jsonpath={.status.readyToUse}=true", "volumegroupsnapshot/both")
	c.wait("jsonpath={.status.readyToUse}=true", "volumesnapshot", "--all")
	members := strings.Fields(c.kubectl("get", "volumesnapshot", "-o", "jsonpath={.items[*].metadata.name}"))
	if len(members) != 2 {
		t.Fatalf("the group has the snapshots %q", members)
	}
	c.apply(claim("restored", "1Gi", fmt.Sprintf("{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: %s}", members[0])))
	c.wait("jsonpath={.status.phase}=Bound", "pvc/restored")

	c.kubectl("delete", "volumegroupsnapshot", "both")
	c.wait("delete", "volumegroupsnapshotcontent", "--all")
	c.wait("delete", "volumesnapshotcontent", "--all")
	for _, name := range members {
		c.wait("delete", "volumesnapshot/"+name)
	}
}

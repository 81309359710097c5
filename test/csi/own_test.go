// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/grpc"

	"github.com/mortise-dev/mortise/internal/agent/localstorage"
)

// noMounts are the mounts of a driver whose volumes no pod mounts.
type noMounts struct{}

func (noMounts) Bind(string, string) error         { return nil }
func (noMounts) Unmount(string) error              { return nil }
func (noMounts) IsMountPoint(string) (bool, error) { return false, nil }

// The cluster's own driver has the life of a volume by the unmodified sidecars, too, which snapshots and clones need: provisioned on its
// node, expanded while a pod uses it, copied by a snapshot and by a clone with what is in it, and deleted.
func TestOwnDriver(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, "--controllers", "*,-local-volume-provisioner-controller")
	c.snapshots()
	dir := t.TempDir()
	own := localstorage.New(localstorage.Options{
		Dir: filepath.Join(dir, "volumes"), Root: dir, NodeName: "node-0", Mounter: noMounts{}, Logger: slog.New(slog.DiscardHandler),
	})
	socket := filepath.Join(dir, "csi.sock")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
	must(t, err)
	s := grpc.NewServer()
	own.Register(s)
	go func() { _ = s.Serve(l) }() // until it is stopped
	t.Cleanup(s.Stop)
	c.kubectl("label", "node", "node-0", localstorage.TopologyKey+"=node-0")
	c.apply(fmt.Sprintf(`apiVersion: storage.k8s.io/v1
kind: CSINode
metadata: {name: node-0}
spec: {drivers: [{name: %[1]s, nodeID: node-0, topologyKeys: [%[2]s]}]}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: own}
provisioner: %[1]s
allowVolumeExpansion: true
volumeBindingMode: WaitForFirstConsumer
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: own}
driver: %[1]s
deletionPolicy: Delete
`, localstorage.Name, localstorage.TopologyKey))
	c.sidecars(socket, "csi-provisioner", "csi-resizer", "csi-snapshotter", "snapshot-controller")
	// data is where what a claim's volume contains is.
	data := func(claim string) string {
		volume := c.kubectl("get", "pvc", claim, "-o", "jsonpath={.spec.volumeName}")
		id := c.kubectl("get", "pv", volume, "-o", "jsonpath={.spec.csi.volumeHandle}")
		return filepath.Join(dir, "volumes", "volumes", id, "data", "file")
	}
	bound := func(name, size, source string) {
		t.Helper()
		c.apply(strings.Replace(claim(name, size, source), "storageClassName: mock", "storageClassName: own", 1))
		c.apply(pod(name, "node-0", name))
		c.wait("jsonpath={.status.phase}=Bound", "pvc/"+name)
		c.wait("condition=Ready", "pod/"+name)
	}

	bound("data", "1Mi", "")
	affinity := c.kubectl("get", "pv", "-o", "jsonpath={.items[0].spec.nodeAffinity.required.nodeSelectorTerms[0].matchExpressions[0]}")
	if !strings.Contains(affinity, localstorage.TopologyKey) {
		t.Errorf("the volume's node affinity is %s", affinity)
	}
	must(t, os.WriteFile(data("data"), []byte("kept"), 0o600))
	c.kubectl("patch", "pvc", "data", "-p", `{"spec":{"resources":{"requests":{"storage":"2Mi"}}}}`)
	c.wait("jsonpath={.spec.capacity.storage}=2Mi", "pv/"+c.kubectl("get", "pvc", "data", "-o", "jsonpath={.spec.volumeName}"))
	c.apply(`apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: copy}
spec: {volumeSnapshotClassName: own, source: {persistentVolumeClaimName: data}}
`)
	c.wait("jsonpath={.status.readyToUse}=true", "volumesnapshot/copy")
	must(t, os.WriteFile(data("data"), []byte("changed"), 0o600))
	bound("restored", "2Mi", "{apiGroup: snapshot.storage.k8s.io, kind: VolumeSnapshot, name: copy}")
	bound("cloned", "2Mi", "{kind: PersistentVolumeClaim, name: data}")
	for name, want := range map[string]string{"restored": "kept", "cloned": "changed"} {
		if got, err := os.ReadFile(data(name)); string(got) != want {
			t.Errorf("%s has %q, want %q: %v", name, got, want, err)
		}
	}
	c.kubectl("delete", "pod,volumesnapshot,pvc", "--all")
	c.wait("delete", "pv", "--all")
	c.wait("delete", "volumesnapshotcontent", "--all")
	for _, kind := range []string{"volumes", "snapshots"} {
		if left, err := os.ReadDir(filepath.Join(dir, "volumes", kind)); err != nil || len(left) > 0 {
			t.Errorf("%s that are left: %v, error %v", kind, left, err)
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localstorage

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// mounts are simulated mounts: links would not do, since a driver removes the directory.
type mounts map[string]string

func (m mounts) Bind(source, target string) error      { m[target] = source; return nil }
func (m mounts) Unmount(dir string) error              { delete(m, dir); return nil }
func (m mounts) IsMountPoint(dir string) (bool, error) { _, ok := m[dir]; return ok, nil }

func newDriver(t *testing.T) (*Driver, mounts) {
	m := mounts{}
	d := New(Options{
		Dir: filepath.Join(t.TempDir(), "s"), Root: t.TempDir(), NodeName: "n1", Mounter: m, Logger: slog.New(slog.DiscardHandler),
	})
	if err := d.prepare(); err != nil {
		t.Fatal(err)
	}
	return d, m
}

func capability() *csipb.VolumeCapability {
	return &csipb.VolumeCapability{
		AccessType: &csipb.VolumeCapability_Mount{Mount: &csipb.VolumeCapability_MountVolume{}},
		AccessMode: &csipb.VolumeCapability_AccessMode{Mode: csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func create(t *testing.T, d *Driver, name string, source *csipb.VolumeContentSource) *csipb.Volume {
	t.Helper()
	made, err := (&controllerServer{store: d.store}).CreateVolume(t.Context(), &csipb.CreateVolumeRequest{
		Name: name, VolumeCapabilities: []*csipb.VolumeCapability{capability()}, VolumeContentSource: source,
	})
	if err != nil {
		t.Fatal(err)
	}
	return made.Volume
}

// Before the first volume, the capacity is that of the file system on which volumes will be.
func TestCapacityWithoutVolumes(t *testing.T) {
	d := New(Options{Dir: filepath.Join(t.TempDir(), "later", "volumes"), NodeName: "n1", Logger: slog.New(slog.DiscardHandler)})
	got, err := (&controllerServer{store: d.store}).GetCapacity(t.Context(), &csipb.GetCapacityRequest{})
	if err != nil || got.AvailableCapacity <= 0 {
		t.Errorf("capacity %d, %v", got.GetAvailableCapacity(), err)
	}
}

// A snapshot and a clone have the contents of their volume, with links that lead out as links.
func TestCopies(t *testing.T) {
	d, _ := newDriver(t)
	v := create(t, d, "one", nil)
	data := d.dataOf(volumesDir, v.VolumeId)
	outside := filepath.Join(t.TempDir(), "secret")
	for _, err := range []error{
		os.WriteFile(outside, []byte("secret"), 0o600), os.Mkdir(filepath.Join(data, "dir"), 0o750),
		os.WriteFile(filepath.Join(data, "dir/file"), []byte("text"), 0o640), os.Symlink(outside, filepath.Join(data, "link")),
		os.Symlink("/", filepath.Join(data, "dir/top")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	c := &controllerServer{store: d.store}
	s, err := c.CreateSnapshot(t.Context(), &csipb.CreateSnapshotRequest{Name: "s", SourceVolumeId: v.VolumeId})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.DeleteVolume(t.Context(), &csipb.DeleteVolumeRequest{VolumeId: v.VolumeId}); err != nil {
		t.Fatal(err)
	}
	restored := create(t, d, "two", &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Snapshot{
		Snapshot: &csipb.VolumeContentSource_SnapshotSource{SnapshotId: s.Snapshot.SnapshotId},
	}})
	clone := create(t, d, "three", &csipb.VolumeContentSource{Type: &csipb.VolumeContentSource_Volume{
		Volume: &csipb.VolumeContentSource_VolumeSource{VolumeId: restored.VolumeId},
	}})
	for _, copied := range []*csipb.Volume{restored, clone} {
		data := d.dataOf(volumesDir, copied.VolumeId)
		text, err := os.ReadFile(filepath.Join(data, "dir/file"))
		if err != nil || string(text) != "text" {
			t.Errorf("%q, %v", text, err)
		}
		if info, err := os.Stat(filepath.Join(data, "dir")); err != nil || info.Mode().Perm() != 0o750 {
			t.Errorf("%v, %v", info, err)
		}
		if to, err := os.Readlink(filepath.Join(data, "link")); err != nil || to != outside {
			t.Errorf("link to %q, %v", to, err)
		}
	}
}

// A volume of the cluster's provisioner is made when it is published; any other must exist. An inline volume ends when it is unpublished.
func TestMadeOnTheNode(t *testing.T) {
	d, m := newDriver(t)
	target := filepath.Join(t.TempDir(), "mount")
	publish := func(id string, attributes map[string]string) error {
		_, err := (&nodeServer{store: d.store}).NodePublishVolume(t.Context(), &csipb.NodePublishVolumeRequest{
			VolumeId: id, TargetPath: target, VolumeCapability: capability(), VolumeContext: attributes,
		})
		return err
	}
	if err := publish("pvc-1", nil); status.Code(err) != codes.NotFound {
		t.Errorf("error %v", err)
	}
	if err := publish("../../etc", map[string]string{Lazy: "true"}); status.Code(err) != codes.NotFound {
		t.Errorf("error %v", err)
	}
	for id, attributes := range map[string]map[string]string{
		"pvc-1": {Lazy: "true", Size: "5"}, "csi-1": {"csi.storage.k8s.io/ephemeral": "true"},
	} {
		for range 2 {
			if err := publish(id, attributes); err != nil {
				t.Fatal(err)
			}
		}
		if m[target] != d.dataOf(volumesDir, id) {
			t.Errorf("mounted: %v", m)
		}
		for range 2 {
			q := &csipb.NodeUnpublishVolumeRequest{VolumeId: id, TargetPath: target}
			if _, err := (&nodeServer{store: d.store}).NodeUnpublishVolume(t.Context(), q); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r, err := d.find(volumesDir, "pvc-1"); err != nil || r == nil || r.Size != 5 {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := d.find(volumesDir, "csi-1"); err != nil || r != nil {
		t.Errorf("%+v, %v", r, err)
	}
	if gone := d.Remove([]string{"pvc-1", "pvc-1", "never"}); len(gone) != 2 {
		t.Errorf("gone: %v", gone)
	}
	if entries, err := os.ReadDir(filepath.Join(d.Dir, volumesDir)); err != nil || len(entries) > 0 {
		t.Errorf("left: %v, %v", entries, err)
	}
}

// What a killed driver has not completed is removed when the next one starts.
func TestHalfDone(t *testing.T) {
	d, _ := newDriver(t)
	half := filepath.Join(d.Dir, volumesDir, ".making-1")
	if err := os.MkdirAll(filepath.Join(half, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(half); !os.IsNotExist(err) {
		t.Errorf("left: %v", err)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"id":"a","size":1}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if r, err := decodeRecord(text); err == nil && (!validID.MatchString(r.ID) || r.Size < 0) {
			t.Errorf("%+v", r)
		}
	})
}

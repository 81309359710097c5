// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localstorage

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
)

// onBtrfs mounts a file system at a directory that only this test sees: it locks the goroutine to a thread with mounts of its own, which
// ends with it.
func onBtrfs(t *testing.T, dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIPPED: a file system is mounted by root alone")
	}
	if _, err := exec.LookPath("mkfs.btrfs"); err != nil {
		t.Skip("SKIPPED: btrfs-progs is not installed")
	}
	if known, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(known), "btrfs") {
		t.Skip("SKIPPED: the kernel has no btrfs")
	}
	if _, err := os.Stat("/dev/loop-control"); err != nil {
		t.Skip("SKIPPED: the machine has no loop devices")
	}
	runtime.LockOSThread()
	for _, err := range []error{
		os.Mkdir(dir, 0o700), unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS), unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	image := dir + ".image"
	if err := errors.Join(os.WriteFile(image, nil, 0o600), os.Truncate(image, 256<<20)); err != nil {
		t.Fatal(err)
	}
	for _, command := range [][]string{{"mkfs.btrfs", "-q", image}, {"mount", "-o", "loop", image, dir}, {"btrfs", "quota", "enable", dir}} {
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", command, err, out)
		}
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
}

// Where the file system has quotas, a pod can write as much to a volume as it has asked for, and more once the volume has grown.
func TestQuota(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "btrfs")
	onBtrfs(t, dir)
	d, _ := newDriver(t)
	d.Dir = filepath.Join(dir, "volumes")
	if err := d.prepare(); err != nil {
		t.Fatal(err)
	}
	server := &controllerServer{store: d.store}
	size := func(mib int64) *csipb.CapacityRange { return &csipb.CapacityRange{RequiredBytes: mib << 20} }
	made, err := server.CreateVolume(t.Context(), &csipb.CreateVolumeRequest{
		Name: "v", VolumeCapabilities: []*csipb.VolumeCapability{capability()}, CapacityRange: size(8),
	})
	if err != nil {
		t.Fatal(err)
	}
	id := made.Volume.VolumeId
	fill := func() error {
		f, err := os.Create(filepath.Join(d.dataOf(volumesDir, id), "file"))
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.Write(make([]byte, 16<<20))
		return errors.Join(err, f.Sync())
	}
	if err := fill(); !errors.Is(err, unix.EDQUOT) {
		t.Errorf("16 MiB in a volume of 8: %v, want %v", err, unix.EDQUOT)
	}
	grow := &csipb.ControllerExpandVolumeRequest{VolumeId: id, CapacityRange: size(32)}
	if _, err := server.ControllerExpandVolume(t.Context(), grow); err != nil {
		t.Fatal(err)
	}
	if err := fill(); err != nil {
		t.Errorf("16 MiB in a volume of 32: %v", err)
	}
	if _, err := server.DeleteVolume(t.Context(), &csipb.DeleteVolumeRequest{VolumeId: id}); err != nil {
		t.Error(err)
	}
	if left, err := os.ReadDir(filepath.Join(d.Dir, volumesDir)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

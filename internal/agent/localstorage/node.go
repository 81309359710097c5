// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localstorage

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// nodeServer is the node service.
type nodeServer struct {
	csipb.UnimplementedNodeServer
	*store
}

// NodeGetInfo implements the node service.
func (d *nodeServer) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{
		NodeId: d.NodeName, AccessibleTopology: &csipb.Topology{Segments: map[string]string{TopologyKey: d.NodeName}},
	}, nil
}

// NodeGetCapabilities implements the node service.
func (d *nodeServer) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	out := &csipb.NodeGetCapabilitiesResponse{}
	for _, t := range []csipb.NodeServiceCapability_RPC_Type{
		csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities, &csipb.NodeServiceCapability{
			Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return out, nil
}

// flags are the mount options that a bind mount may have.
var flags = map[string]uintptr{
	"ro": unix.MS_RDONLY, "rw": 0, "nodev": unix.MS_NODEV, "noexec": unix.MS_NOEXEC, "nosuid": unix.MS_NOSUID,
	"noatime": unix.MS_NOATIME, "nodiratime": unix.MS_NODIRATIME, "relatime": unix.MS_RELATIME, "strictatime": unix.MS_STRICTATIME,
}

// NodePublishVolume implements the node service: it binds the volume's directory.
func (d *nodeServer) NodePublishVolume(_ context.Context, q *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	if q.GetVolumeId() == "" || q.GetTargetPath() == "" || q.GetVolumeCapability() == nil {
		return nil, status.Error(codes.InvalidArgument, "a publication needs a volume, a path and a capability")
	}
	ephemeral := q.GetVolumeContext()["csi.storage.k8s.io/ephemeral"] == "true"
	if err := able([]*csipb.VolumeCapability{q.VolumeCapability}); err != nil && !ephemeral {
		return nil, err
	}
	bits := uintptr(0)
	for _, option := range q.GetVolumeCapability().GetMount().GetMountFlags() {
		bit, ok := flags[option]
		if !ok {
			return nil, status.Errorf(codes.InvalidArgument, "mount option %q is not supported", option)
		}
		bits |= bit
	}
	if q.Readonly {
		bits |= unix.MS_RDONLY
	}
	if err := d.need(q, ephemeral); err != nil {
		return nil, err
	}
	if err := d.keepAlone(q); err != nil {
		return nil, err
	}
	return &csipb.NodePublishVolumeResponse{}, d.bind(d.dataOf(volumesDir, q.VolumeId), q.TargetPath, bits)
}

// need makes a volume that is made on its node: an inline one, or one of the cluster's provisioner.
func (d *nodeServer) need(q *csipb.NodePublishVolumeRequest, ephemeral bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	have, err := d.find(volumesDir, q.VolumeId)
	if err != nil || have != nil {
		return err
	}
	if !ephemeral && q.GetVolumeContext()[Lazy] != "true" || !validID.MatchString(q.VolumeId) {
		return status.Errorf(codes.NotFound, "there is no volume %s", q.VolumeId)
	}
	r := &record{ID: q.VolumeId, Size: sizeFrom(q.GetVolumeContext()), Ephemeral: ephemeral, Made: time.Now()}
	if err := d.make(volumesDir, r, ""); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// keepAlone refuses a second path for a volume that is published for a single writer, and notes the path of such a volume.
func (d *nodeServer) keepAlone(q *csipb.NodePublishVolumeRequest) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	r, err := d.existing(volumesDir, q.VolumeId)
	if err != nil {
		return err
	}
	if r.Alone != "" && r.Alone != q.TargetPath {
		mounted, err := d.Mounter.IsMountPoint(r.Alone)
		if err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		if mounted {
			return status.Errorf(codes.FailedPrecondition, "volume %s is published at another path for a single writer", r.ID)
		}
	}
	alone := ""
	if q.GetVolumeCapability().GetAccessMode().GetMode() == csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER {
		alone = q.TargetPath
	}
	if r.Alone == alone {
		return nil
	}
	r.Alone = alone
	if err := d.rewrite(volumesDir, r); err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	return nil
}

// bind binds a directory, with mount options.
func (d *nodeServer) bind(from, to string, bits uintptr) error {
	if err := os.Mkdir(to, 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
		return status.Errorf(codes.Internal, "make %s: %v", to, err)
	}
	mounted, err := d.Mounter.IsMountPoint(to)
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	if !mounted {
		if err := d.Mounter.Bind(from, to); err != nil {
			return status.Errorf(codes.Internal, "bind %s: %v", to, err)
		}
	}
	if bits == 0 {
		return nil
	}
	if err := unix.Mount("", to, "", unix.MS_REMOUNT|unix.MS_BIND|bits, ""); err != nil {
		return status.Errorf(codes.Internal, "set options of mount %s: %v", to, errors.Join(err, d.Mounter.Unmount(to)))
	}
	return nil
}

// NodeUnpublishVolume implements the node service. An inline volume ends with it.
func (d *nodeServer) NodeUnpublishVolume(
	_ context.Context, q *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	if q.GetVolumeId() == "" || q.GetTargetPath() == "" {
		return nil, errNoID
	}
	if err := d.Mounter.Unmount(q.TargetPath); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	if err := os.Remove(q.TargetPath); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, status.Error(codes.Internal, err.Error())
	}
	r, err := d.find(volumesDir, q.VolumeId)
	if err != nil {
		return nil, err
	}
	if r != nil && r.Ephemeral {
		if err := d.remove(volumesDir, r.ID); err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
	}
	return &csipb.NodeUnpublishVolumeResponse{}, nil
}

// NodeGetVolumeStats implements the node service. The size of a volume is what was asked for; what is free of it is at most what the file
// system has.
func (d *nodeServer) NodeGetVolumeStats(
	ctx context.Context, q *csipb.NodeGetVolumeStatsRequest,
) (*csipb.NodeGetVolumeStatsResponse, error) {
	if q.GetVolumeId() == "" || q.GetVolumePath() == "" {
		return nil, errNoID
	}
	r, err := d.existing(volumesDir, q.VolumeId)
	if err != nil {
		return nil, err
	}
	if _, err := os.Lstat(q.VolumePath); err != nil {
		return nil, status.Errorf(codes.NotFound, "there is nothing at %s", q.VolumePath)
	}
	var s unix.Statfs_t
	data := d.dataOf(volumesDir, r.ID)
	if err := unix.Statfs(data, &s); err != nil {
		return nil, status.Errorf(codes.Internal, "measure %s: %v", data, err)
	}
	used, files := taken(ctx, data)
	free := int64(s.Bavail) * s.Bsize
	return &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{
		{Unit: csipb.VolumeUsage_BYTES, Total: r.Size, Used: used, Available: max(min(r.Size-used, free), 0)},
		{Unit: csipb.VolumeUsage_INODES, Total: int64(s.Files), Used: files, Available: int64(s.Ffree)},
	}}, nil
}

// taken counts the bytes and the files in a directory, until ctx ends.
func taken(ctx context.Context, dir string) (bytes, files int64) {
	_ = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		var s unix.Stat_t
		if err == nil && unix.Lstat(path, &s) == nil {
			bytes, files = bytes+s.Blocks*512, files+1
		}
		return ctx.Err()
	})
	return bytes, files
}

// NodeExpandVolume implements the node service.
func (d *nodeServer) NodeExpandVolume(_ context.Context, q *csipb.NodeExpandVolumeRequest) (*csipb.NodeExpandVolumeResponse, error) {
	if q.GetVolumeId() == "" || q.GetVolumePath() == "" {
		return nil, errNoID
	}
	if _, err := d.existing(volumesDir, q.VolumeId); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(q.VolumePath); err != nil {
		return nil, status.Errorf(codes.NotFound, "there is nothing at %s", q.VolumePath)
	}
	size, err := d.grow(q.VolumeId, q.GetCapacityRange())
	if err != nil {
		return nil, err
	}
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: size}, nil
}

// Remove deletes volumes, and returns the names of those that do not exist any more.
func (d *Driver) Remove(ids []string) (gone []string) {
	for _, id := range slices.Compact(slices.Sorted(slices.Values(ids))) {
		if err := d.remove(volumesDir, id); err != nil {
			d.Logger.Warn("Could not remove a volume, retrying with the next change of the Node", "volume", id, "err", err)
			continue
		}
		gone = append(gone, id)
	}
	return gone
}

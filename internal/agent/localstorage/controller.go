// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package localstorage

import (
	"context"
	"strconv"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// controllerServer is the controller service.
type controllerServer struct {
	csipb.UnimplementedControllerServer
	*store
}

// ControllerGetCapabilities implements the controller service.
func (d *controllerServer) ControllerGetCapabilities(
	context.Context, *csipb.ControllerGetCapabilitiesRequest,
) (*csipb.ControllerGetCapabilitiesResponse, error) {
	out := &csipb.ControllerGetCapabilitiesResponse{}
	for _, t := range []csipb.ControllerServiceCapability_RPC_Type{
		csipb.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME, csipb.ControllerServiceCapability_RPC_LIST_VOLUMES,
		csipb.ControllerServiceCapability_RPC_GET_CAPACITY, csipb.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT,
		csipb.ControllerServiceCapability_RPC_LIST_SNAPSHOTS, csipb.ControllerServiceCapability_RPC_CLONE_VOLUME,
		csipb.ControllerServiceCapability_RPC_EXPAND_VOLUME, csipb.ControllerServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		out.Capabilities = append(out.Capabilities, &csipb.ControllerServiceCapability{
			Type: &csipb.ControllerServiceCapability_Rpc{Rpc: &csipb.ControllerServiceCapability_RPC{Type: t}},
		})
	}
	return out, nil
}

// able checks that the driver can make volumes that are used so.
func able(all []*csipb.VolumeCapability) error {
	for _, c := range all {
		if c.GetMount() == nil {
			return status.Error(codes.InvalidArgument, "volumes are directories, not block devices")
		}
		switch c.GetAccessMode().GetMode() {
		case csipb.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, csipb.VolumeCapability_AccessMode_SINGLE_NODE_READER_ONLY,
			csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, csipb.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER:
		default:
			return status.Errorf(codes.InvalidArgument, "volumes are on one node: access mode %s is not supported", c.GetAccessMode().GetMode())
		}
	}
	return nil
}

// sizeOf returns the size that a range requires. The limit may not be less.
func sizeOf(r *csipb.CapacityRange) (int64, error) {
	required, limit := r.GetRequiredBytes(), r.GetLimitBytes()
	if required < 0 || limit < 0 || limit > 0 && required > limit {
		return 0, status.Errorf(codes.OutOfRange, "the range from %d to %d bytes is empty", required, limit)
	}
	if required == 0 {
		required = defaultSize
		if limit > 0 {
			required = min(required, limit)
		}
	}
	return required, nil
}

// CreateVolume implements the controller service.
func (d *controllerServer) CreateVolume(_ context.Context, q *csipb.CreateVolumeRequest) (*csipb.CreateVolumeResponse, error) {
	if q.GetName() == "" || len(q.GetVolumeCapabilities()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "a volume needs a name and capabilities")
	}
	if err := able(q.VolumeCapabilities); err != nil {
		return nil, err
	}
	size, err := sizeOf(q.CapacityRange)
	if err != nil {
		return nil, err
	}
	r := &record{
		ID: idOf(q.Name), Name: q.Name, Size: size, Made: time.Now(), Source: q.GetVolumeContentSource().GetVolume().GetVolumeId(),
		Snapshot: q.GetVolumeContentSource().GetSnapshot().GetSnapshotId(),
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	have, err := d.find(volumesDir, r.ID)
	if err != nil {
		return nil, err
	}
	if have != nil {
		limit := q.GetCapacityRange().GetLimitBytes()
		if have.Source != r.Source || have.Snapshot != r.Snapshot || have.Size < size || limit > 0 && have.Size > limit {
			return nil, status.Errorf(codes.AlreadyExists, "volume %s exists with another size or source", q.Name)
		}
		return d.made(have, q), nil
	}
	from, err := d.sourceOf(r)
	if err != nil {
		return nil, err
	}
	if free, err := d.free(); err == nil && size > free && q.GetCapacityRange().GetRequiredBytes() > 0 {
		return nil, status.Errorf(codes.ResourceExhausted, "%d bytes are free, %d are required", free, size)
	}
	if err := d.make(volumesDir, r, from); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return d.made(r, q), nil
}

// sourceOf returns the directory whose contents a new volume has; empty: none.
func (d *controllerServer) sourceOf(r *record) (string, error) {
	kind, id := volumesDir, r.Source
	if r.Snapshot != "" {
		kind, id = snapshotsDir, r.Snapshot
	}
	if id == "" {
		return "", nil
	}
	source, err := d.find(kind, id)
	if err != nil {
		return "", err
	}
	if source == nil {
		return "", status.Errorf(codes.NotFound, "there is no source %s", id)
	}
	if source.Size > r.Size {
		return "", status.Errorf(codes.OutOfRange, "the source has %d bytes, the volume %d", source.Size, r.Size)
	}
	return d.dataOf(kind, id), nil
}

// made returns the answer for a volume.
func (d *controllerServer) made(r *record, q *csipb.CreateVolumeRequest) *csipb.CreateVolumeResponse {
	return &csipb.CreateVolumeResponse{Volume: &csipb.Volume{
		VolumeId: r.ID, CapacityBytes: r.Size, ContentSource: q.GetVolumeContentSource(),
		AccessibleTopology: []*csipb.Topology{{Segments: map[string]string{TopologyKey: d.NodeName}}},
	}}
}

// DeleteVolume implements the controller service.
func (d *controllerServer) DeleteVolume(_ context.Context, q *csipb.DeleteVolumeRequest) (*csipb.DeleteVolumeResponse, error) {
	if q.GetVolumeId() == "" {
		return nil, errNoID
	}
	if err := d.remove(volumesDir, q.VolumeId); err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csipb.DeleteVolumeResponse{}, nil
}

var errNoID = status.Error(codes.InvalidArgument, "an ID is missing")

// ValidateVolumeCapabilities implements the controller service.
func (d *controllerServer) ValidateVolumeCapabilities(
	_ context.Context, q *csipb.ValidateVolumeCapabilitiesRequest,
) (*csipb.ValidateVolumeCapabilitiesResponse, error) {
	if q.GetVolumeId() == "" || len(q.GetVolumeCapabilities()) == 0 {
		return nil, errNoID
	}
	if _, err := d.existing(volumesDir, q.VolumeId); err != nil {
		return nil, err
	}
	if err := able(q.VolumeCapabilities); err != nil {
		return &csipb.ValidateVolumeCapabilitiesResponse{Message: err.Error()}, nil
	}
	return &csipb.ValidateVolumeCapabilitiesResponse{Confirmed: &csipb.ValidateVolumeCapabilitiesResponse_Confirmed{
		VolumeContext: q.GetVolumeContext(), VolumeCapabilities: q.GetVolumeCapabilities(), Parameters: q.GetParameters(),
	}}, nil
}

// existing returns a volume or a snapshot that must exist.
func (d *store) existing(kind, id string) (*record, error) {
	r, err := d.find(kind, id)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, status.Errorf(codes.NotFound, "there is no %s in %s", id, kind)
	}
	return r, nil
}

// ListVolumes implements the controller service.
func (d *controllerServer) ListVolumes(_ context.Context, q *csipb.ListVolumesRequest) (*csipb.ListVolumesResponse, error) {
	all, err := d.list(volumesDir)
	if err != nil {
		return nil, err
	}
	page, next, err := pageOf(all, q.GetStartingToken(), q.GetMaxEntries())
	if err != nil {
		return nil, err
	}
	out := &csipb.ListVolumesResponse{NextToken: next}
	for _, r := range page {
		out.Entries = append(out.Entries, &csipb.ListVolumesResponse_Entry{Volume: &csipb.Volume{
			VolumeId: r.ID, CapacityBytes: r.Size,
			AccessibleTopology: []*csipb.Topology{{Segments: map[string]string{TopologyKey: d.NodeName}}},
		}})
	}
	return out, nil
}

// pageOf returns a page of a list. A token is the ID of the last one on the page before: the list may change meanwhile.
func pageOf(all []*record, token string, most int32) (page []*record, next string, err error) {
	if most < 0 {
		return nil, "", status.Error(codes.InvalidArgument, "a page has no negative number of entries")
	}
	if token != "" {
		if !validID.MatchString(token) {
			return nil, "", status.Errorf(codes.Aborted, "token %q is none of this driver", token)
		}
		at := 0
		for at < len(all) && all[at].ID <= token {
			at++
		}
		if at == 0 {
			return nil, "", status.Errorf(codes.Aborted, "token %q is none of this driver", token)
		}
		all = all[at:]
	}
	if most == 0 || len(all) <= int(most) {
		return all, "", nil
	}
	return all[:most], all[most-1].ID, nil
}

// GetCapacity implements the controller service.
func (d *controllerServer) GetCapacity(_ context.Context, q *csipb.GetCapacityRequest) (*csipb.GetCapacityResponse, error) {
	if node, ok := q.GetAccessibleTopology().GetSegments()[TopologyKey]; ok && node != d.NodeName || able(q.GetVolumeCapabilities()) != nil {
		return &csipb.GetCapacityResponse{}, nil
	}
	free, err := d.free()
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return &csipb.GetCapacityResponse{AvailableCapacity: free}, nil
}

// ControllerExpandVolume implements the controller service.
func (d *controllerServer) ControllerExpandVolume(
	_ context.Context, q *csipb.ControllerExpandVolumeRequest,
) (*csipb.ControllerExpandVolumeResponse, error) {
	if q.GetVolumeId() == "" || q.GetCapacityRange() == nil {
		return nil, status.Error(codes.InvalidArgument, "an expansion needs a volume and a size")
	}
	size, err := d.grow(q.VolumeId, q.CapacityRange)
	if err != nil {
		return nil, err
	}
	return &csipb.ControllerExpandVolumeResponse{CapacityBytes: size}, nil
}

// grow notes a new size of a volume.
func (d *store) grow(id string, to *csipb.CapacityRange) (int64, error) {
	size, err := sizeOf(to)
	if err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	r, err := d.existing(volumesDir, id)
	if err != nil {
		return 0, err
	}
	if size <= r.Size {
		return r.Size, nil
	}
	r.Size = size
	if err := limit(d.dataOf(volumesDir, id), size); err != nil {
		return 0, status.Error(codes.Internal, err.Error())
	}
	if err := d.rewrite(volumesDir, r); err != nil {
		return 0, status.Error(codes.Internal, err.Error())
	}
	return size, nil
}

// sizeFrom reads a size from a volume's attributes.
func sizeFrom(attributes map[string]string) int64 {
	if n, err := strconv.ParseInt(attributes[Size], 10, 64); err == nil && n > 0 {
		return n
	}
	return defaultSize
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

// array is the storage behind the driver. It outlives all processes, and its books are what the test trusts: it does all that it is asked
// for, and notes what should not have been asked.
type array struct {
	w *controllertest.World

	mu        sync.Mutex
	attached  map[string]map[string]bool   // by volume and node
	staged    map[string]map[string]string // paths, by node and volume
	published map[string]map[string]string // volumes, by node and path below the node's directory
	uses      int                          // publications so far
}

func newArray(w *controllertest.World) *array {
	return &array{
		w: w, attached: map[string]map[string]bool{}, staged: map[string]map[string]string{}, published: map[string]map[string]string{},
	}
}

func (a *array) attach(node, volume string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.attached[volume] == nil {
		a.attached[volume] = map[string]bool{}
	}
	a.attached[volume][node] = true
}

// detach detaches a volume. A node that has lost its power has nothing mounted.
func (a *array) detach(node, volume string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if path := a.staged[node][volume]; path != "" {
		a.w.Fail(fmt.Sprintf("%s is detached from %s, where it is staged", volume, node))
	}
	delete(a.attached[volume], node)
}

func (a *array) stage(node, volume, path string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.attached[volume][node] {
		a.w.Fail(fmt.Sprintf("%s is staged on %s, where it is not attached", volume, node))
	}
	if a.staged[node] == nil {
		a.staged[node] = map[string]string{}
	}
	a.staged[node][volume] = path
}

func (a *array) unstage(node, volume string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for path, of := range a.published[node] {
		if of == volume {
			a.w.Fail(fmt.Sprintf("%s is unstaged on %s, where it is published at %s", volume, node, path))
		}
	}
	delete(a.staged[node], volume)
}

func (a *array) publish(node, volume, path string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.staged[node][volume] == "" {
		a.w.Fail(fmt.Sprintf("%s is published on %s, where it is not staged", volume, node))
	}
	if modeOf(volume) == corev1.ReadWriteOncePod {
		for other, all := range a.published {
			for at, of := range all {
				if of == volume && (other != node || at != path) {
					a.w.Fail(fmt.Sprintf("%s is published twice: at %s %s, and at %s %s", volume, other, at, node, path))
				}
			}
		}
	}
	if a.published[node] == nil {
		a.published[node] = map[string]string{}
	}
	if a.published[node][path] == "" {
		a.uses++
	}
	a.published[node][path] = volume
}

func (a *array) unpublish(node, path string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.published[node], path)
}

// powerOff forgets what a node has mounted.
func (a *array) powerOff(node string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.staged, node)
	delete(a.published, node)
}

// left returns what a volume still has on a node.
func (a *array) left(node, volume string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case slices.Contains(slices.Collect(maps.Values(a.published[node])), volume):
		return "published"
	case a.staged[node][volume] != "":
		return "staged"
	case a.attached[volume][node]:
		return "attached"
	}
	return ""
}

// publishedAt reports whether a volume is published for a pod.
func (a *array) publishedAt(node, volume, pod string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for path, of := range a.published[node] {
		if of == volume && strings.HasPrefix(path, "pods/"+pod+"/") {
			return true
		}
	}
	return false
}

// driverProcess is the driver on one node. It serves one call for a volume at a time, as the specification wants.
type driverProcess struct {
	up      bool
	epoch   int
	pending map[string]bool // volumes
	fuse    int             // the calls until it is killed; 0: it is not
}

// driverClient calls the driver for one life of a node.
type driverClient struct {
	csipb.NodeClient
	l *life
}

// call makes a call. Either side may be killed before it, during it and after it; the driver does what it has begun.
func (c *driverClient) call(method, volume string, effect func() error) error {
	l, n := c.l, c.l.n
	what := method + " " + n.name + " " + volume
	l.step("send " + what)
	n.mu.Lock()
	d := &n.driver
	switch {
	case !d.up:
		n.mu.Unlock()
		return status.Error(codes.Unavailable, "no driver")
	case d.pending[volume]:
		n.mu.Unlock()
		return status.Error(codes.Aborted, "an operation on the volume is pending")
	}
	d.pending[volume] = true
	epoch := d.epoch
	n.mu.Unlock()
	n.w.Pause("work of "+what, 3*time.Second)
	err := n.served(what, epoch, volume, effect)
	l.step("answer " + what)
	return err
}

// served is the end of a call in the driver.
func (n *simulatedNode) served(what string, epoch int, volume string, effect func() error) error {
	luck := n.w.Chance(100, "luck of "+what)
	n.mu.Lock()
	defer n.mu.Unlock()
	d := &n.driver
	if !d.up || d.epoch != epoch {
		return status.Error(codes.Unavailable, "the driver was killed")
	}
	killed := false
	if d.fuse > 0 {
		d.fuse--
		killed = d.fuse == 0
	}
	if killed && luck < 50 {
		n.killDriver()
		return status.Error(codes.Unavailable, "the driver was killed")
	}
	delete(d.pending, volume)
	if luck >= 94 {
		return status.Error(codes.Internal, "not today")
	}
	err := effect()
	switch {
	case killed:
		n.killDriver()
		return status.Error(codes.Unavailable, "the driver was killed")
	case luck >= 90:
		return status.Error(codes.DeadlineExceeded, "done, and said to be late")
	}
	return err
}

func (c *driverClient) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest, ...grpc.CallOption,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	stages := &csipb.NodeServiceCapability_RPC{Type: csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME}
	return &csipb.NodeGetCapabilitiesResponse{Capabilities: []*csipb.NodeServiceCapability{
		{Type: &csipb.NodeServiceCapability_Rpc{Rpc: stages}},
	}}, nil
}

func (c *driverClient) NodeStageVolume(
	_ context.Context, r *csipb.NodeStageVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodeStageVolumeResponse, error) {
	n, path := c.l.n, c.l.relative(r.StagingTargetPath)
	return &csipb.NodeStageVolumeResponse{}, c.call("stage", r.VolumeId, func() error {
		n.mounts[path] = true
		n.array.stage(n.name, r.VolumeId, path)
		return nil
	})
}

func (c *driverClient) NodeUnstageVolume(
	_ context.Context, r *csipb.NodeUnstageVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodeUnstageVolumeResponse, error) {
	n, path := c.l.n, c.l.relative(r.StagingTargetPath)
	return &csipb.NodeUnstageVolumeResponse{}, c.call("unstage", r.VolumeId, func() error {
		delete(n.mounts, path)
		n.array.unstage(n.name, r.VolumeId)
		return nil
	})
}

func (c *driverClient) NodePublishVolume(
	_ context.Context, r *csipb.NodePublishVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodePublishVolumeResponse, error) {
	n, path := c.l.n, c.l.relative(r.TargetPath)
	return &csipb.NodePublishVolumeResponse{}, c.call("publish", r.VolumeId, func() error {
		if err := os.Mkdir(filepath.Join(n.root(), path), 0o750); err != nil && !errors.Is(err, fs.ErrExist) {
			return status.Error(codes.Internal, err.Error())
		}
		n.mounts[path] = true
		n.array.publish(n.name, r.VolumeId, path)
		return nil
	})
}

func (c *driverClient) NodeUnpublishVolume(
	_ context.Context, r *csipb.NodeUnpublishVolumeRequest, _ ...grpc.CallOption,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	n, path := c.l.n, c.l.relative(r.TargetPath)
	return &csipb.NodeUnpublishVolumeResponse{}, c.call("unpublish", r.VolumeId, func() error {
		if n.running[podAt(path)] {
			n.w.Fail(fmt.Sprintf("%s is unpublished on %s, where its pod runs: %s", r.VolumeId, n.name, path))
		}
		delete(n.mounts, path)
		n.array.unpublish(n.name, path)
		if err := os.RemoveAll(filepath.Join(n.root(), path)); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
		return nil
	})
}

// podAt returns the UID of the pod whose directory has a path.
func podAt(path string) string {
	rest, _ := strings.CutPrefix(path, "pods/")
	uid, _, _ := strings.Cut(rest, "/")
	return uid
}

// kernel is what a life of a node sees of the node's mounts, which outlive it.
type kernel struct{ l *life }

func (k kernel) Tmpfs(string, int64) error { return errors.ErrUnsupported }
func (k kernel) Huge(string, int64) error  { return errors.ErrUnsupported }
func (k kernel) Mount(context.Context, string, string, string, []string) error {
	return errors.ErrUnsupported
}
func (k kernel) Bind(string, string) error { return errors.ErrUnsupported }

func (k kernel) Unmount(dir string) error {
	k.l.step("unmount")
	k.l.n.mu.Lock()
	defer k.l.n.mu.Unlock()
	delete(k.l.n.mounts, k.l.relative(dir))
	return nil
}

func (k kernel) IsMountPoint(dir string) (bool, error) {
	k.l.n.mu.Lock()
	defer k.l.n.mu.Unlock()
	return k.l.n.mounts[k.l.relative(dir)], nil
}

func (k kernel) Below(dir string) ([]string, error) {
	k.l.n.mu.Lock()
	defer k.l.n.mu.Unlock()
	var out []string
	for path := range k.l.n.mounts {
		if path := filepath.Join(k.l.root, path); strings.HasPrefix(path, dir+"/") {
			out = append(out, path)
		}
	}
	slices.Sort(out)
	return out, nil
}

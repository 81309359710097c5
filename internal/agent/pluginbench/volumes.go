// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	csi "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/version"

	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// csiType is the type of CSI drivers in the plug-in directory.
const csiType = "CSIPlugin"

// mostNodeID is the longest node ID, in bytes, of the CSI specification.
const mostNodeID = 256

// Volume is a made-up volume for a CSI driver. The zero value has the checks of volumes skipped.
type Volume struct {
	Endpoint   string // the driver's socket; the driver has no registrar beside it then, and is not registered
	ID         string // empty: none
	FSType     string
	Attributes map[string]string // volume_context
	Publish    map[string]string // publish_context
	Secrets    map[string]string
}

// volumeBench drives a CSI driver.
type volumeBench struct {
	*bench
	door    *door
	kubelet *kubelet
	stage   bool // it has STAGE_UNSTAGE_VOLUME
	stats   bool // it has GET_VOLUME_STATS
	nodeID  string
}

func volumeSteps(b *bench) ([]step, func(), error) {
	d := &volumeBench{bench: b}
	d.start(false)
	return []step{
		{"registers", true, d.registers},
		{"says who it is", false, d.identifies},
		{"is ready", false, d.probes},
		{"knows its node", true, d.nodeInfo},
		{"has capabilities", true, d.capabilities},
		{"refuses a volume without an ID", false, d.refuses},
		{"publishes a volume", false, d.publishes},
		{"survives a call that kubelet gives up", false, d.survives},
		{"serves after it hung in a call", false, d.hung},
		{"comes back after it is killed", false, d.killed},
		{"comes back after kubelet restarts", false, d.kubeletRestarts},
		{"comes back after kubelet refuses it", false, d.kubeletRefuses},
	}, func() { d.kubelet.stop() }, nil
}

// start starts kubelet's side. refuse: it refuses the first registration.
func (d *volumeBench) start(refuse bool) {
	d.door = newDoor(d.bench, csiHandler{}, refuse)
	d.kubelet = startKubelet(func(ctx context.Context) error { return plugins.Run(ctx, d.registry(csiType, d.door)) })
}

// csiHandler takes CSI drivers as kubelet does.
type csiHandler struct{}

// Validate refuses drivers without a version 1 of CSI.
func (csiHandler) Validate(_ context.Context, p plugins.Plugin) error {
	var highest *version.Version
	for _, v := range p.Versions {
		if parsed, err := version.ParseGeneric(v); err == nil && parsed.Major() == 1 && (highest == nil || highest.LessThan(parsed)) {
			highest = parsed
		}
	}
	if highest == nil {
		return fmt.Errorf("CSI driver %q at endpoint %q reports none of the supported versions (1.x) in %q", p.Name, p.Endpoint, p.Versions)
	}
	return nil
}

// Register asks for the driver's node, without which kubelet does not register it.
func (csiHandler) Register(ctx context.Context, p plugins.Plugin) error {
	connection, err := connect(p.Endpoint)
	if err != nil {
		return err
	}
	defer connection.Close()
	_, err = csi.NewNodeClient(connection).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
	return err
}

// Deregister drops it.
func (csiHandler) Deregister(context.Context, plugins.Plugin) {}

// endpoint returns the driver's socket; empty: it is not registered.
func (d *volumeBench) endpoint() string {
	if d.Volume.Endpoint != "" {
		return d.Volume.Endpoint
	}
	p, here := d.door.here(d.report.Name)
	if here {
		d.report.Name = p.Name
	}
	return p.Endpoint
}

// usable reports whether the driver is registered, or has its socket.
func (d *volumeBench) usable() bool {
	if d.Volume.Endpoint == "" {
		return d.endpoint() != ""
	}
	info, err := os.Stat(d.Volume.Endpoint)
	return err == nil && info.Mode()&os.ModeSocket != 0
}

func (d *volumeBench) registers(ctx context.Context) finding {
	begun := time.Now()
	if d.Volume.Endpoint != "" {
		return d.answers(ctx)
	}
	if err := d.launch(); err != nil {
		return fail("%v", err)
	}
	restarts, err := d.until(ctx, d.usable)
	if err != nil {
		return fail("no registration in %s: %v", d.registry("", nil).Dir, err)
	}
	p, _ := d.door.here(d.report.Name)
	f := ok("%s at %s, versions %q", p.Name, p.Endpoint, p.Versions)
	if p.Endpoint == filepath.Join(d.registry("", nil).Dir, filepath.Base(p.Endpoint)) {
		f = warn("%s serves CSI at its registration socket %s", p.Name, p.Endpoint)
	}
	f.took = time.Since(begun)
	return restarted(f, restarts, "before it was registered")
}

// answers starts a driver without a registrar, and waits until it answers.
func (d *volumeBench) answers(ctx context.Context) finding {
	if err := d.launch(); err != nil {
		return fail("%v", err)
	}
	err := d.call(ctx, func(ctx context.Context, c *grpc.ClientConn) error {
		info, err := csi.NewIdentityClient(c).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{}, grpc.WaitForReady(true))
		d.report.Name = info.GetName()
		return err
	})
	if err != nil {
		return fail("it does not answer at %s: %v", d.Volume.Endpoint, err)
	}
	return ok("%s answers at %s; its registrar is not part of this run", d.report.Name, d.Volume.Endpoint)
}

// call calls the driver.
func (d *volumeBench) call(ctx context.Context, call func(context.Context, *grpc.ClientConn) error) error {
	endpoint := d.endpoint()
	if endpoint == "" {
		return errors.New("the driver is not registered")
	}
	connection, err := connect(endpoint)
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, d.Wait)
	defer cancel()
	return call(ctx, connection)
}

// check calls the driver, and makes a finding of it.
func (d *volumeBench) check(ctx context.Context, call func(context.Context, *grpc.ClientConn) finding) finding {
	var f finding
	begun := time.Now()
	if err := d.call(ctx, func(ctx context.Context, c *grpc.ClientConn) error { f = call(ctx, c); return nil }); err != nil {
		return fail("%v", err)
	}
	return d.slow(f, time.Since(begun))
}

func (d *volumeBench) identifies(ctx context.Context) finding {
	return d.check(ctx, func(ctx context.Context, c *grpc.ClientConn) finding {
		info, err := csi.NewIdentityClient(c).GetPluginInfo(ctx, &csi.GetPluginInfoRequest{})
		switch {
		case err != nil:
			return fail("GetPluginInfo: %v", err)
		case info.GetName() != d.report.Name:
			return fail("GetPluginInfo has the name %q, and the registration %q", info.GetName(), d.report.Name)
		case len(info.GetName()) > 63 || len(validation.IsDNS1123Subdomain(info.GetName())) > 0:
			return fail("the name %q is not a domain name of at most 63 characters", info.GetName())
		case info.GetVendorVersion() == "":
			return fail("GetPluginInfo has no vendor version")
		}
		if _, err := csi.NewIdentityClient(c).GetPluginCapabilities(ctx, &csi.GetPluginCapabilitiesRequest{}); err != nil {
			return fail("GetPluginCapabilities: %v", err)
		}
		return ok("%s, version %s", info.GetName(), info.GetVendorVersion())
	})
}

func (d *volumeBench) probes(ctx context.Context) finding {
	return d.check(ctx, func(ctx context.Context, c *grpc.ClientConn) finding {
		answer, err := csi.NewIdentityClient(c).Probe(ctx, &csi.ProbeRequest{})
		if err != nil {
			return fail("Probe: %v", err)
		}
		if answer.GetReady() != nil && !answer.GetReady().GetValue() {
			return warn("Probe says that it is not ready")
		}
		return ok("ready")
	})
}

func (d *volumeBench) nodeInfo(ctx context.Context) finding {
	return d.check(ctx, func(ctx context.Context, c *grpc.ClientConn) finding {
		info, err := csi.NewNodeClient(c).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
		switch {
		case err != nil:
			return fail("NodeGetInfo: %v", err)
		case info.GetNodeId() == "":
			return fail("NodeGetInfo has no node ID").kubeletSays("error updating CSINode: " + "nodeID must not be empty")
		case len(info.GetNodeId()) > mostNodeID:
			return fail("the node ID has %d bytes, more than %d", len(info.GetNodeId()), mostNodeID)
		case info.GetMaxVolumesPerNode() < 0:
			return fail("max_volumes_per_node is %d", info.GetMaxVolumesPerNode())
		}
		d.nodeID = info.GetNodeId()
		for key := range info.GetAccessibleTopology().GetSegments() {
			if problems := validation.IsQualifiedName(key); len(problems) > 0 {
				return fail("the topology key %q is no name of a label: %v", key, problems)
			}
		}
		return ok("node ID %s, at most %d volumes (0: any), topology %v", d.nodeID, info.GetMaxVolumesPerNode(),
			info.GetAccessibleTopology().GetSegments())
	})
}

func (d *volumeBench) capabilities(ctx context.Context) finding {
	return d.check(ctx, func(ctx context.Context, c *grpc.ClientConn) finding {
		answer, err := csi.NewNodeClient(c).NodeGetCapabilities(ctx, &csi.NodeGetCapabilitiesRequest{})
		if err != nil {
			return fail("NodeGetCapabilities: %v", err)
		}
		var names []string
		for _, one := range answer.GetCapabilities() {
			names = append(names, one.GetRpc().GetType().String())
		}
		d.stage = slices.Contains(names, csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME.String())
		d.stats = slices.Contains(names, csi.NodeServiceCapability_RPC_GET_VOLUME_STATS.String())
		return ok("%v", names)
	})
}

func (d *volumeBench) refuses(ctx context.Context) finding {
	return d.check(ctx, func(ctx context.Context, c *grpc.ClientConn) finding {
		_, err := csi.NewNodeClient(c).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{})
		switch status.Code(err) {
		case codes.InvalidArgument:
			return ok("%v", err)
		case codes.OK:
			return fail("it publishes a volume without an ID")
		}
		return warn("the specification has InvalidArgument: %v", err)
	})
}

func (d *volumeBench) survives(ctx context.Context) finding {
	return d.check(ctx, func(ctx context.Context, c *grpc.ClientConn) finding {
		for range 10 {
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			_, _ = csi.NewNodeClient(c).NodeGetInfo(short, &csi.NodeGetInfoRequest{}) // given up, or answered
			cancel()
		}
		if _, err := csi.NewNodeClient(c).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{}); err != nil {
			return fail("it no longer answers: %v", err)
		}
		return ok("it still answers")
	})
}

// asksVolume publishes a volume that the driver does not have: it refuses it, if it answers.
func asksVolume(ctx context.Context, c *grpc.ClientConn) error {
	_, err := csi.NewNodeClient(c).NodePublishVolume(ctx, &csi.NodePublishVolumeRequest{})
	return err
}

// unmounted is what kubelet says of a pod for which NodePublishVolume has failed.
func unmounted(err error) string {
	return fmt.Sprintf("FailedMount: MountVolume.SetUp failed for volume \"bench\" : %v", err)
}

// hung has the driver's program hang in NodePublishVolume.
func (d *volumeBench) hung(ctx context.Context) finding {
	return d.hangs(ctx, d.endpoint(), asksVolume, func(err error) string { return "after 2 minutes: " + unmounted(err) }, func() finding {
		if !d.answersNow(ctx)() {
			return fail("NodeGetInfo fails")
		}
		return ok("")
	})
}

func (d *volumeBench) killed(ctx context.Context) finding {
	if d.process == nil {
		return skip("the bench has not started the driver's program")
	}
	broken, err := d.breakOff(ctx, d.endpoint(), asksVolume)
	if err != nil {
		return fail("%v", err)
	}
	if d.Volume.Endpoint != "" {
		return d.answers(ctx).kubeletSays("of the call: " + unmounted(broken))
	}
	begun := time.Now()
	if err := d.launch(); err != nil {
		return fail("%v", err)
	}
	restarts, err := d.until(ctx, d.answersNow(ctx))
	if err != nil {
		return fail("no registration after kill -9 and a start: %v", err)
	}
	f := ok("registered again").kubeletSays("of the call: " + unmounted(broken))
	f.took = time.Since(begun)
	return restarted(f, restarts, "before it was registered")
}

// answersNow reports whether the driver is registered and answers.
func (d *volumeBench) answersNow(ctx context.Context) func() bool {
	return func() bool {
		return d.usable() && d.call(ctx, func(ctx context.Context, c *grpc.ClientConn) error {
			_, err := csi.NewNodeClient(c).NodeGetInfo(ctx, &csi.NodeGetInfoRequest{})
			return err
		}) == nil
	}
}

func (d *volumeBench) kubeletRestarts(ctx context.Context) finding {
	return d.returns(ctx, false, "registered again")
}

func (d *volumeBench) kubeletRefuses(ctx context.Context) finding {
	return d.returns(ctx, true, "registered at the next attempt")
}

// returns restarts kubelet, and waits until the driver is registered. refuse: kubelet refuses the first registration.
func (d *volumeBench) returns(ctx context.Context, refuse bool, done string) finding {
	if d.Volume.Endpoint != "" {
		return skip("its registrar is not part of this run")
	}
	d.kubelet.stop()
	begun := time.Now()
	d.start(refuse)
	restarts, err := d.until(ctx, d.answersNow(ctx))
	if err != nil {
		return fail("no registration: %v", err)
	}
	f := ok("%s", done)
	f.took = time.Since(begun)
	return restarted(f, restarts, "when kubelet restarted")
}

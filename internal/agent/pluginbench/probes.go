// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package pluginbench

import (
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

// noSuchDevice is the ID of a device that no plug-in has.
const noSuchDevice = "mortise-bench-no-such-device"

// prober makes the checks that call a device plug-in directly.
type prober struct{ *deviceBench }

// probe calls the plug-in at its socket.
func (d prober) probe(ctx context.Context, call func(context.Context, pluginapi.DevicePluginClient) finding) finding {
	connection, err := connect(d.socket())
	if err != nil {
		return fail("%v", err)
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(ctx, d.Wait)
	defer cancel()
	begun := time.Now()
	f := call(ctx, pluginapi.NewDevicePluginClient(connection))
	return d.slow(f, time.Since(begun))
}

// first returns the first list of a new ListAndWatch.
func first(ctx context.Context, c pluginapi.DevicePluginClient) ([]*pluginapi.Device, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := c.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return nil, err
	}
	list, err := stream.Recv()
	return list.GetDevices(), err
}

func (d prober) listsTwice(ctx context.Context) finding {
	return d.probe(ctx, func(ctx context.Context, c pluginapi.DevicePluginClient) finding {
		list, err := first(ctx, c)
		if err != nil {
			return fail("a second ListAndWatch had no list: a node that restarts makes one: %v", err)
		}
		var ids []string
		for _, device := range list {
			switch id := device.GetID(); {
			case id == "":
				return fail("a device has no ID")
			case slices.Contains(ids, id):
				return fail("two devices have the ID %q: kubelet counts them as one", id)
			}
			ids = append(ids, device.GetID())
			if h := device.GetHealth(); h != pluginapi.Healthy && h != pluginapi.Unhealthy {
				return warn("the device %q has the health %q: kubelet takes all but %q for unhealthy", device.GetID(), h, pluginapi.Healthy)
			}
		}
		if int64(len(ids)) < d.healthy {
			return warn("%d devices, and %d in the first list", len(ids), d.healthy)
		}
		return ok("%d devices", len(ids))
	})
}

func (d prober) prefers(ctx context.Context) finding {
	return d.probe(ctx, func(ctx context.Context, c pluginapi.DevicePluginClient) finding {
		options, err := c.GetDevicePluginOptions(ctx, &pluginapi.Empty{})
		if err != nil {
			return fail("GetDevicePluginOptions: %v", err)
		}
		if !options.GetGetPreferredAllocationAvailable() {
			return skip("it has no GetPreferredAllocation")
		}
		list, err := first(ctx, c)
		if err != nil {
			return fail("ListAndWatch: %v", err)
		}
		var free []string
		for _, device := range list {
			if device.GetHealth() == pluginapi.Healthy {
				free = append(free, device.GetID())
			}
		}
		for size := 1; size <= min(len(free), 8); size++ {
			answer, err := c.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{
				ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{{
					AvailableDeviceIDs: free, MustIncludeDeviceIDs: free[:1], AllocationSize: int32(size),
				}},
			})
			if err != nil {
				return fail("%d of %d devices: %v", size, len(free), err)
			}
			if f := preferred(answer, free, size); f.result != OK {
				return f
			}
		}
		return ok("1 to %d of %d devices", min(len(free), 8), len(free))
	})
}

// preferred checks an answer of GetPreferredAllocation.
func preferred(answer *pluginapi.PreferredAllocationResponse, free []string, size int) finding {
	if n := len(answer.GetContainerResponses()); n != 1 {
		return fail("%d answers for 1 container: kubelet takes the first, or prefers none", n)
	}
	ids := answer.GetContainerResponses()[0].GetDeviceIDs()
	for _, id := range ids {
		if !slices.Contains(free, id) {
			return fail("it prefers %q, which is not available: kubelet passes it over", id)
		}
	}
	switch {
	case len(ids) != size:
		return warn("it prefers %d devices, asked for %d: kubelet chooses the others itself", len(ids), size)
	case !slices.Contains(ids, free[0]):
		return warn("it leaves out a device that has to be among them: kubelet gives it all the same")
	}
	return ok("")
}

func (d prober) refuses(ctx context.Context) finding {
	return d.probe(ctx, func(ctx context.Context, c pluginapi.DevicePluginClient) finding {
		_, err := allocate(ctx, c, noSuchDevice)
		if err == nil {
			return warn("it allocates a device that it does not list: kubelet never asks for one, but a device may go while it asks")
		}
		return ok("%v", err).kubeletSays(unexpected(err))
	})
}

// asks allocates a device that the plug-in lists.
func (d prober) asks(ctx context.Context, c *grpc.ClientConn) error {
	_, err := allocate(ctx, pluginapi.NewDevicePluginClient(c), d.ownIDs()[0])
	return err
}

// ownIDs returns the devices of the pod that has one.
func (d prober) ownIDs() (ids []string) {
	for _, s := range d.managers.ResourceStatus(d.holder, "c") {
		for _, r := range s.Resources {
			ids = append(ids, string(r.ResourceID))
		}
	}
	return append(ids, noSuchDevice)
}

// unexpected is what kubelet says of a pod for which Allocate has failed.
func unexpected(err error) string {
	return fmt.Sprintf("UnexpectedAdmissionError: Allocate failed due to device plugin Allocate rpc failed with err: %v, "+
		"which is unexpected", err)
}

// hung has the plug-in's program hang in Allocate.
func (d prober) hung(ctx context.Context) finding {
	return d.hangs(ctx, d.socket(), d.asks, func(err error) string {
		return "kubelet's Allocate has no limit, and it admits no other pod; a node of Mortise gives up after 30 s: " + unexpected(err)
	}, func() finding {
		return d.probe(ctx, func(ctx context.Context, c pluginapi.DevicePluginClient) finding {
			if _, err := allocate(ctx, c, d.ownIDs()[0]); err != nil {
				return fail("%v", err)
			}
			return ok("")
		})
	})
}

func allocate(ctx context.Context, c pluginapi.DevicePluginClient, id string) (*pluginapi.AllocateResponse, error) {
	return c.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: []string{id}}}})
}

func (d prober) survives(ctx context.Context) finding {
	return d.probe(ctx, func(ctx context.Context, c pluginapi.DevicePluginClient) finding {
		for range 10 {
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			_, _ = allocate(short, c, noSuchDevice) // given up, or refused
			cancel()
		}
		if _, err := c.GetDevicePluginOptions(ctx, &pluginapi.Empty{}); err != nil {
			return fail("it no longer answers: %v", err)
		}
		return ok("it still answers")
	})
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/mortise-dev/mortise/bench/load"
	"github.com/mortise-dev/mortise/bench/report"
	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/devicemanager"
	"github.com/mortise-dev/mortise/internal/durable"
)

const (
	deviceResource = "example.com/dev"
	flappingOf     = 10_000          // devices
	flappingFor    = 5 * time.Second // they are listed anew each millisecond
	allocations    = 200
	sandbox        = 50 * time.Millisecond // the start of a pod's sandbox, at the least, during which the checkpoint is written
)

// nodePlugins is what plug-ins of the node cost: the node's device manager, in this process, and a plug-in at its socket.
func nodePlugins(ctx context.Context, _ *bench, add adder) error {
	if err := allocates(ctx, add); err != nil {
		return err
	}
	return flaps(ctx, add)
}

// allocates adds what the allocation of a device adds to the start of a pod, and what a pod without devices pays: with the CPU that this
// process does not use while nothing happens. The plug-in is a process of its own, whose CPU is not the node's.
func allocates(ctx context.Context, add adder) (err error) {
	n, err := startDevices(ctx, 100, 0, true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	_, idle, err := sandboxed(ctx, start{})
	if err != nil {
		return err
	}
	written, writing, err := sandboxed(ctx, n.writes())
	if err != nil {
		return err
	}
	with, cpu, err := sandboxed(ctx, n.pods(1))
	if err != nil {
		return err
	}
	add("allocation of a device, of a pod's start: median",
		report.Value{Unit: "ms", Number: load.Quantile(with, 50), Bound: report.AtMost(2)},
		report.Value{Name: "CPU", Unit: "ms", Number: load.Ms(max(cpu-idle, 0)), Bound: report.AtMost(0.5)},
		report.Value{Name: "a synced write of 4 KB alone", Unit: "ms", Number: load.Quantile(written, 50)},
		report.Value{Name: "its CPU", Unit: "ms", Number: load.Ms(max(writing-idle, 0))})
	without, cpu, err := sandboxed(ctx, n.pods(0))
	if err != nil {
		return err
	}
	add("the same of a pod without devices",
		report.Value{Unit: "ms", Number: load.Quantile(without, 50), Bound: report.AtMost(0.01)},
		report.Value{Name: "CPU", Unit: "ms", Number: load.Ms(max(cpu-idle, 0)), Bound: report.AtMost(0.01)})
	return nil
}

// flaps adds the CPU of a plug-in that lists its devices anew each millisecond.
func flaps(ctx context.Context, add adder) (err error) {
	n, err := startDevices(ctx, flappingOf, time.Millisecond, false)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	before, begun := processCPU(), time.Now()
	select {
	case <-time.After(flappingFor):
	case <-ctx.Done():
		return ctx.Err()
	}
	share := float64(processCPU()-before) / float64(time.Since(begun)) * 100
	add(fmt.Sprintf("%d devices, listed anew each millisecond", flappingOf),
		report.Value{Name: "CPU, with the plug-in's", Unit: "% of a core", Number: share, Bound: report.AtMost(5)})
	return nil
}

func processCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// deviceNode is a device manager with one plug-in.
type deviceNode struct {
	managers *containermanager.Manager
	dir      string
	cancel   context.CancelFunc
	running  sync.WaitGroup
	plugin   *devicePlugin // nil: in another process
	apart    func() error  // ends that process

	mu    sync.Mutex
	known map[types.UID]bool
}

// Known implements [devicemanager.Pods].
func (n *deviceNode) Known() (map[types.UID]bool, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.known), true
}

// Wake implements [devicemanager.Pods].
func (*deviceNode) Wake(types.UID) {}

// startDevices starts a device manager and a plug-in with so many devices, which it lists anew after each interval; 0: once. Apart: the
// plug-in is another process.
func startDevices(ctx context.Context, devices int, every time.Duration, apart bool) (_ *deviceNode, err error) {
	n := &deviceNode{known: map[types.UID]bool{}}
	if n.dir, err = os.MkdirTemp("", "devices"); err != nil {
		return nil, err
	}
	listed := make(chan struct{}, 1)
	manager, err := devicemanager.New(devicemanager.Options{Dir: n.dir, Pods: n, Changed: func() {
		select {
		case listed <- struct{}{}:
		default:
		}
	}})
	if err != nil {
		return nil, err
	}
	n.managers = containermanager.New(nil, manager.Row())
	ctx, n.cancel = context.WithCancel(ctx)
	n.running.Go(func() { _ = manager.Run(ctx) })
	if apart {
		err = n.serveApart(ctx, devices)
	} else {
		n.plugin = newDevicePlugin(devices, every)
		err = n.plugin.serve(ctx, n.dir)
	}
	if err != nil {
		return nil, errors.Join(err, n.stop())
	}
	for {
		_, free := n.managers.Capacity()
		if q := free[deviceResource]; q.Value() > 0 {
			return n, nil
		}
		select {
		case <-listed:
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), n.stop())
		}
	}
}

func (n *deviceNode) stop() (err error) {
	n.cancel()
	if n.plugin != nil && n.plugin.server != nil {
		n.plugin.server.Stop()
	}
	if n.apart != nil {
		err = n.apart()
	}
	n.running.Wait()
	return errors.Join(err, os.RemoveAll(n.dir))
}

// start is what is done at a pod's start: before its sandbox, after it, and at the pod's end. nil: nothing.
type start struct {
	before, after, end func(ctx context.Context, i int) error
}

// sandboxed does this for each pod. It returns how long the pod waited, without the start of the sandbox between, and the CPU for one pod
// until its end, the sandbox's time included.
func sandboxed(ctx context.Context, s start) (took []time.Duration, cpu time.Duration, err error) {
	do := func(f func(ctx context.Context, i int) error, i int) (time.Duration, error) {
		if f == nil {
			return 0, nil
		}
		begun := time.Now()
		err := f(ctx, i)
		return time.Since(begun), err
	}
	for i := range allocations {
		spent := processCPU()
		before, err := do(s.before, i)
		if err != nil {
			return nil, 0, err
		}
		select {
		case <-time.After(sandbox):
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
		after, err := do(s.after, i)
		if err != nil {
			return nil, 0, err
		}
		cpu += processCPU() - spent
		took = append(took, before+after)
		if _, err := do(s.end, i); err != nil {
			return nil, 0, err
		}
	}
	return took, cpu / allocations, nil
}

// pods admits, starts and releases pods that want so many devices.
func (n *deviceNode) pods(devices int64) start {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p"}}
	pod.Spec.Containers = []corev1.Container{{Name: "c"}}
	if devices > 0 {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{
			deviceResource: *apiresource.NewQuantity(devices, apiresource.DecimalSI),
		}
	}
	return start{
		before: func(ctx context.Context, i int) error {
			pod.UID = types.UID(fmt.Sprint("pod-", i))
			n.mu.Lock()
			n.known = map[types.UID]bool{pod.UID: true}
			n.mu.Unlock()
			return n.managers.Admit(ctx, pod)
		},
		after: func(ctx context.Context, _ int) error {
			_, err := n.managers.Options(ctx, pod, &pod.Spec.Containers[0])
			return err
		},
		end: func(ctx context.Context, _ int) error { return n.managers.Release(ctx, pod.UID) },
	}
}

// writes writes a small file that is on disk, which each allocation needs.
func (n *deviceNode) writes() start {
	text := make([]byte, 4096)
	return start{before: func(context.Context, int) error { return durable.Write(filepath.Join(n.dir, "alone"), 0o600, text) }}
}

// devicePlugin is a device plug-in on the public API.
type devicePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
	devices []*pluginapi.Device
	every   time.Duration
	server  *grpc.Server
}

func newDevicePlugin(devices int, every time.Duration) *devicePlugin {
	p := &devicePlugin{every: every}
	for i := range devices {
		p.devices = append(p.devices, &pluginapi.Device{ID: fmt.Sprintf("device-%05d", i), Health: pluginapi.Healthy})
	}
	return p
}

// GetDevicePluginOptions implements the plug-in's API.
func (*devicePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

// ListAndWatch implements the plug-in's API. Its lists are encoded beforehand: the plug-in itself costs little.
func (p *devicePlugin) ListAndWatch(_ *pluginapi.Empty, s grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	if p.every == 0 {
		err := s.Send(&pluginapi.ListAndWatchResponse{Devices: p.devices})
		<-s.Context().Done()
		return err
	}
	sick := &pluginapi.Device{ID: p.devices[0].GetID(), Health: pluginapi.Unhealthy}
	lists := [2]*grpc.PreparedMsg{{}, {}}
	for i, devices := range [][]*pluginapi.Device{p.devices, append([]*pluginapi.Device{sick}, p.devices[1:]...)} {
		if err := lists[i].Encode(s, &pluginapi.ListAndWatchResponse{Devices: devices}); err != nil {
			return err
		}
	}
	tick := time.NewTicker(p.every)
	defer tick.Stop()
	for i := 0; ; i++ {
		if err := s.SendMsg(lists[i%2]); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-s.Context().Done():
			return nil
		}
	}
}

// Allocate implements the plug-in's API.
func (*devicePlugin) Allocate(context.Context, *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	one := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"DEVICE": "1"}}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{one}}, nil
}

// serve serves the plug-in, and registers it. The node removes the sockets that it finds when it starts: the plug-in's comes after the
// node's.
func (p *devicePlugin) serve(ctx context.Context, dir string) error {
	c, err := grpc.NewClient("unix:"+filepath.Join(dir, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer c.Close()
	for c.Connect(); c.GetState() != connectivity.Ready; c.Connect() {
		if !c.WaitForStateChange(ctx, c.GetState()) {
			return ctx.Err()
		}
	}
	l, err := net.Listen("unix", filepath.Join(dir, "plugin.sock"))
	if err != nil {
		return err
	}
	p.server = grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(p.server, p)
	go func() { _ = p.server.Serve(l) }() // Stop ends it
	_, err = pluginapi.NewRegistrationClient(c).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: "plugin.sock", ResourceName: deviceResource,
	})
	return err
}

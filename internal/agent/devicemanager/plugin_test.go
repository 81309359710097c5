// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package devicemanager

import (
	"context"
	"errors"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/mortise-dev/mortise/internal/agent/containermanager"
)

// pods are the pods of a node.
type pods struct {
	mu    sync.Mutex
	known map[types.UID]bool
	all   bool
	woken chan types.UID
}

func newPods() *pods {
	return &pods{known: map[types.UID]bool{}, all: true, woken: make(chan types.UID, 1000)}
}

func (p *pods) Known() (map[types.UID]bool, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := map[types.UID]bool{}
	for uid := range p.known {
		out[uid] = true
	}
	return out, p.all
}

func (p *pods) Wake(uid types.UID) {
	select {
	case p.woken <- uid:
	default:
	}
}

func (p *pods) set(uid types.UID, known bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known {
		p.known[uid] = true
	} else {
		delete(p.known, uid)
	}
}

// driver is a device plug-in, built on the public API alone.
type driver struct {
	pluginapi.UnimplementedDevicePluginServer
	options pluginapi.DevicePluginOptions
	refused error                    // of GetDevicePluginOptions
	lists   chan []*pluginapi.Device // each is sent
	answer  func(ids []string) (*pluginapi.ContainerAllocateResponse, error)
	prefer  func(q *pluginapi.ContainerPreferredAllocationRequest) []string
	server  *grpc.Server

	mu         sync.Mutex
	allocated  [][]string
	preStarted [][]string
}

func devices(ids ...string) []*pluginapi.Device {
	var out []*pluginapi.Device
	for _, id := range ids {
		out = append(out, &pluginapi.Device{ID: id, Health: pluginapi.Healthy})
	}
	return out
}

func newDriver(ids ...string) *driver {
	d := &driver{lists: make(chan []*pluginapi.Device, 100)}
	d.lists <- devices(ids...)
	return d
}

func (d *driver) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &d.options, d.refused
}

func (d *driver) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	for {
		select {
		case <-stream.Context().Done():
			return nil
		case list := <-d.lists:
			if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: list}); err != nil {
				return err
			}
		}
	}
}

func (d *driver) Allocate(_ context.Context, q *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	ids := q.GetContainerRequests()[0].GetDevicesIds()
	d.mu.Lock()
	d.allocated = append(d.allocated, ids)
	d.mu.Unlock()
	answer := &pluginapi.ContainerAllocateResponse{Envs: map[string]string{"FIRST": ids[0]}}
	if d.answer != nil {
		var err error
		if answer, err = d.answer(ids); err != nil {
			return nil, err
		}
	}
	return &pluginapi.AllocateResponse{ContainerResponses: []*pluginapi.ContainerAllocateResponse{answer}}, nil
}

func (d *driver) GetPreferredAllocation(
	_ context.Context, q *pluginapi.PreferredAllocationRequest,
) (*pluginapi.PreferredAllocationResponse, error) {
	return &pluginapi.PreferredAllocationResponse{ContainerResponses: []*pluginapi.ContainerPreferredAllocationResponse{
		{DeviceIDs: d.prefer(q.GetContainerRequests()[0])},
	}}, nil
}

func (d *driver) PreStartContainer(_ context.Context, q *pluginapi.PreStartContainerRequest) (*pluginapi.PreStartContainerResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.preStarted = append(d.preStarted, q.GetDevicesIds())
	return &pluginapi.PreStartContainerResponse{}, nil
}

// serve serves the driver at a socket of the directory.
func (d *driver) serve(t *testing.T, dir, socket string) {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(context.Background(), "unix", filepath.Join(dir, socket))
	if err != nil {
		t.Fatal(err)
	}
	d.server = grpc.NewServer()
	pluginapi.RegisterDevicePluginServer(d.server, d)
	server := d.server
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
}

// register asks the node to take a plug-in.
func register(dir string, q *pluginapi.RegisterRequest) error {
	soon := grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1, MaxDelay: 5 * time.Millisecond},
		MinConnectTimeout: time.Minute}
	c, err := grpc.NewClient("unix:"+filepath.Join(dir, socketName), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(soon))
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = pluginapi.NewRegistrationClient(c).Register(context.Background(), q, grpc.WaitForReady(true))
	return err
}

// node is a manager that runs.
type node struct {
	*Manager
	reporter
	registrar
	aligner
	dir     string
	pods    *pods
	changed chan struct{}
	stop    func()
}

const name = "example.com/dev"

func start(t *testing.T, dir string, p *pods, set func(*Options)) *node {
	t.Helper()
	n := &node{dir: dir, pods: p, changed: make(chan struct{}, 1)}
	o := Options{Dir: dir, Pods: p, NUMANodes: []int{0, 1}, Interval: time.Millisecond, Changed: func() {
		select {
		case n.changed <- struct{}{}:
		default:
		}
	}}
	if set != nil {
		set(&o)
	}
	var err error
	if n.Manager, err = New(o); err != nil {
		t.Fatal(err)
	}
	n.reporter, n.registrar, n.aligner = reporter{n.Manager}, registrar{n.Manager}, aligner{n.Manager}
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan error, 1)
	go func() { over <- n.Run(ctx) }()
	var once sync.Once
	n.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-over; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(n.stop)
	// Once it answers, it has removed the sockets of former plug-ins.
	if err := register(dir, &pluginapi.RegisterRequest{Version: "none"}); err == nil {
		t.Error("a plug-in of an unknown version is registered")
	}
	return n
}

// plug serves a driver, registers it, and waits until its devices count.
func (n *node) plug(t *testing.T, d *driver, socket string) {
	t.Helper()
	d.serve(t, n.dir, socket)
	if err := register(n.dir, &pluginapi.RegisterRequest{Version: "v1beta1", Endpoint: socket, ResourceName: name}); err != nil {
		t.Fatal(err)
	}
	n.until(t, func() bool { _, free := n.Capacity(); q := free[name]; return q.Value() > 0 })
}

// until waits until a condition holds, looking again whenever the capacity may have changed.
func (n *node) until(t *testing.T, holds func() bool) {
	t.Helper()
	late := time.After(time.Minute)
	for !holds() {
		select {
		case <-n.changed:
		case <-late:
			t.Fatal("it does not come")
		}
	}
}

func (n *node) counts() [2]int64 {
	all, free := n.Capacity()
	a, f := all[name], free[name]
	return [2]int64{a.Value(), f.Value()}
}

// asking is a pod whose containers want so many devices.
func asking(uid types.UID, counts ...int64) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid, Name: string(uid), Namespace: "default"}}
	for i, count := range counts {
		pod.Spec.Containers = append(pod.Spec.Containers, container(string(rune('a'+i)), count))
	}
	return pod
}

func container(called string, count int64) corev1.Container {
	return corev1.Container{Name: called, Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{name: *apiresource.NewQuantity(count, apiresource.DecimalSI)},
	}}
}

// admit admits a pod through the seam.
func (n *node) admit(pod *corev1.Pod) error {
	n.pods.set(pod.UID, true)
	return containermanager.New(nil, n.Row()).Admit(context.Background(), pod)
}

func (n *node) release(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if err := n.Release(t.Context(), pod.UID); err != nil {
		t.Error(err)
	}
	n.pods.set(pod.UID, false)
}

// given returns the IDs of a container's devices.
func (n *node) given(uid types.UID, container string) []string {
	var out []string
	for _, d := range n.Devices(uid, container) {
		out = append(out, d.GetDeviceIds()...)
	}
	slices.Sort(out)
	return out
}

func held(err error) bool {
	hold := (*containermanager.Hold)(nil)
	return errors.As(err, &hold)
}

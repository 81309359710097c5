// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/csi"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/agent/volumes/volumetest"
)

// lockedKernel is a kernel for several goroutines: those of drivers, and the node's.
type lockedKernel struct {
	mu     sync.Mutex
	kernel volumetest.Kernel
}

func (k *lockedKernel) do(f func() error) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return f()
}

func (k *lockedKernel) Tmpfs(dir string, size int64) error {
	return k.do(func() error { return k.kernel.Tmpfs(dir, size) })
}
func (k *lockedKernel) Huge(dir string, page int64) error {
	return k.do(func() error { return k.kernel.Huge(dir, page) })
}
func (k *lockedKernel) Mount(ctx context.Context, source, dir, kind string, options []string) error {
	return k.do(func() error { return k.kernel.Mount(ctx, source, dir, kind, options) })
}
func (k *lockedKernel) Unmount(dir string) error {
	return k.do(func() error { return k.kernel.Unmount(dir) })
}
func (k *lockedKernel) Bind(source, target string) error {
	return k.do(func() error { return k.kernel.Bind(source, target) })
}
func (k *lockedKernel) IsMountPoint(dir string) (is bool, err error) {
	_ = k.do(func() error { is, err = k.kernel.IsMountPoint(dir); return nil })
	return is, err
}
func (k *lockedKernel) Below(dir string) (all []string, err error) {
	_ = k.do(func() error { all, err = k.kernel.Below(dir); return nil })
	return all, err
}
func (k *lockedKernel) mounts() int {
	all, _ := k.Below("") // the fake kernel does not fail
	return len(all)
}

// process is a driver's process behind a socket.
type process struct {
	csipb.UnimplementedNodeServer
	*fakeDriver
	name   string
	path   string
	mu     sync.Mutex
	server *grpc.Server
	before func(call string) error // runs before each call, and may fail it
}

func (p *process) intercept(ctx context.Context, in any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	p.mu.Lock()
	before := p.before
	p.mu.Unlock()
	if before != nil {
		switch err := before(filepath.Base(info.FullMethod)); {
		case errors.Is(err, errLies):
			return &csipb.NodeUnpublishVolumeResponse{}, nil
		case err != nil:
			return nil, err
		}
	}
	return handle(ctx, in)
}

func (p *process) set(before func(call string) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.before = before
}

// The methods of the server are those of the fake driver.
func (p *process) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	return &csipb.NodeGetInfoResponse{NodeId: "id"}, nil
}
func (p *process) NodeGetCapabilities(
	ctx context.Context, r *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	return p.fakeDriver.NodeGetCapabilities(ctx, r)
}
func (p *process) NodeStageVolume(ctx context.Context, r *csipb.NodeStageVolumeRequest) (*csipb.NodeStageVolumeResponse, error) {
	return p.fakeDriver.NodeStageVolume(ctx, r)
}
func (p *process) NodeUnstageVolume(ctx context.Context, r *csipb.NodeUnstageVolumeRequest) (*csipb.NodeUnstageVolumeResponse, error) {
	return p.fakeDriver.NodeUnstageVolume(ctx, r)
}
func (p *process) NodePublishVolume(ctx context.Context, r *csipb.NodePublishVolumeRequest) (*csipb.NodePublishVolumeResponse, error) {
	return p.fakeDriver.NodePublishVolume(ctx, r)
}
func (p *process) NodeUnpublishVolume(
	ctx context.Context, r *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	return p.fakeDriver.NodeUnpublishVolume(ctx, r)
}
func (p *process) NodeExpandVolume(ctx context.Context, r *csipb.NodeExpandVolumeRequest) (*csipb.NodeExpandVolumeResponse, error) {
	return p.fakeDriver.NodeExpandVolume(ctx, r)
}
func (p *process) NodeGetVolumeStats(
	ctx context.Context, r *csipb.NodeGetVolumeStatsRequest,
) (*csipb.NodeGetVolumeStatsResponse, error) {
	return p.fakeDriver.NodeGetVolumeStats(ctx, r)
}

// plugin is what the process registers with.
func (p *process) plugin() plugins.Plugin {
	return plugins.Plugin{Type: csi.PluginType, Name: p.name, Endpoint: p.path, Versions: []string{"1.0.0"}}
}

// hosting is a node with its volumes, and drivers behind sockets.
type hosting struct {
	t       *testing.T
	drivers *csi.Manager
	volumes *volumes.Manager
	kernel  *lockedKernel
	sources *claims
}

// claims is an API server with claims whose volumes have their names.
type claims struct {
	*volumetest.Sources
	volumes map[string]*corev1.PersistentVolume
	grown   bool // the claims' statuses are smaller than their volumes
}

func (c *claims) Claim(_ context.Context, namespace, name string) (*corev1.PersistentVolumeClaim, error) {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: corev1.PersistentVolumeClaimSpec{VolumeName: name},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
	}
	if c.grown {
		claim.Status.Capacity = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Mi")}
	}
	return claim, nil
}

func (c *claims) Volume(_ context.Context, name string) (*corev1.PersistentVolume, error) {
	return c.volumes[name], nil
}

// newHosting makes a node.
func newHosting(t *testing.T) *hosting {
	t.Helper()
	file := storagev1.FileFSGroupPolicy
	objects := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"}})
	for _, name := range []string{"bad.example.com", "good.example.com"} {
		if err := objects.Tracker().Add(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagev1.CSIDriverSpec{
			AttachRequired: new(false), FSGroupPolicy: &file,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent},
		}}); err != nil {
			t.Fatal(err)
		}
	}
	h := &hosting{t: t, kernel: &lockedKernel{kernel: volumetest.Kernel{}}}
	h.drivers = csi.New(csi.Options{
		NodeName: "n1", RootDir: "/nowhere", Client: objects, Pods: nobody{}, Resync: func() {}, Ledger: extension.NewLedger(clock.RealClock{}),
		Metrics: csi.NewMetrics(), Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	})
	ctx, cancel := context.WithCancel(t.Context())
	if err := h.drivers.Join(ctx); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- h.drivers.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	h.volumes, _, _, _ = volumetest.New(t, func(host *volumes.Host) volumes.Plugin {
		h.sources = &claims{Sources: host.Sources.(*volumetest.Sources), volumes: map[string]*corev1.PersistentVolume{}}
		host.Mounter, host.Drivers, host.Attachments, host.NodeName = h.kernel, h.drivers, h.drivers.Attachments(), "n1"
		host.Sources, host.Claims = h.sources, &patched{}
		return New(host)
	})
	return h
}

// patched takes patches of claims.
type patched struct{}

func (patched) PatchClaimStatus(context.Context, string, string, []byte) (*corev1.PersistentVolumeClaim, error) {
	return &corev1.PersistentVolumeClaim{}, nil
}

type nobody struct{}

func (nobody) WakeEach([]types.UID) {}

// driver makes a driver, starts it and registers it.
func (h *hosting) driver(name string) *process {
	h.t.Helper()
	p := &process{fakeDriver: newDriver(), name: name, path: filepath.Join(h.t.TempDir(), "s")}
	p.mounter = h.kernel
	h.up(p)
	return p
}

// up starts a driver and registers it.
func (h *hosting) up(p *process) {
	h.t.Helper()
	l, err := new(net.ListenConfig).Listen(h.t.Context(), "unix", p.path)
	if err != nil {
		h.t.Fatal(err)
	}
	p.server = grpc.NewServer(grpc.UnaryInterceptor(p.intercept))
	csipb.RegisterNodeServer(p.server, p)
	serve := p.server.Serve
	go func() { _ = serve(l) }()
	h.t.Cleanup(p.server.Stop)
	if err := h.drivers.Handler().Register(h.t.Context(), p.plugin()); err != nil {
		h.t.Fatal(err)
	}
}

// gone is what the node sees of a driver whose process and socket are gone.
func (h *hosting) gone(p *process) {
	p.server.Stop()
	h.drivers.Handler().Deregister(h.t.Context(), p.plugin())
}

// pod returns a pod with one volume of the driver for each name.
func (h *hosting) pod(uid types.UID, driver string, names ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: string(uid), UID: uid}}
	c := corev1.Container{Name: "c"}
	for _, name := range names {
		pv := persistentVolume(corev1.ReadWriteOnce)
		pv.Name, pv.Spec.CSI.Driver, pv.Spec.CSI.VolumeHandle = name, driver, "handle-"+name
		h.sources.volumes[name] = pv
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
		c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: name, MountPath: "/" + name})
	}
	pod.Spec.Containers = []corev1.Container{c}
	return pod
}

func (h *hosting) setUp(pod *corev1.Pod) error { return h.volumes.SetUp(h.t.Context(), pod, nil) }

// works checks that a pod of the good driver has its volume, and loses it.
func (h *hosting) works(uid types.UID) {
	h.t.Helper()
	if err := h.setUp(h.pod(uid, "good.example.com", "good-"+string(uid))); err != nil {
		h.t.Errorf("another driver's pod: %v", err)
	}
	if err := h.volumes.TearDown(h.t.Context(), uid); err != nil {
		h.t.Errorf("another driver's pod: %v", err)
	}
}

// says checks an error's text: it has all parts, and the driver's name.
func says(t *testing.T, err error, parts ...string) {
	t.Helper()
	for _, part := range append(parts, "bad.example.com") {
		if err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("error %v does not say %q", err, part)
		}
	}
}

// clean tears a pod down, and checks that nothing of any volume is left.
func (h *hosting) clean(uid types.UID) {
	h.t.Helper()
	if err := h.volumes.TearDown(h.t.Context(), uid); err != nil {
		h.t.Error(err)
	}
	empty(h.t, h.volumes.Root)
	if n := h.kernel.mounts(); n > 0 {
		h.t.Errorf("%d mounts are left", n)
	}
	if used := h.drivers.Attachments().InUse(); len(used) > 0 {
		h.t.Errorf("in use: %v", used)
	}
}

// A driver that crashes between stage and publish: the pod's event names it, the other driver's pods go on, and the pod has its volume when
// the driver is back, without a second stage.
func TestDriverCrashes(t *testing.T) {
	h := newHosting(t)
	bad := h.driver("bad.example.com")
	h.driver("good.example.com")
	pod := h.pod("u", bad.name, "v")
	h.stopsIn(bad, func() { says(t, h.setUp(pod), "MountVolume.SetUp failed", "code = Unavailable") })
	h.gone(bad)
	says(t, h.setUp(pod), "not found in the list of registered CSI drivers")
	h.works("other")
	if data, err := readData(h.volumes.VolumeDir("u", Name, "v")); err != nil || data.State != "" {
		t.Errorf("%+v, %v: the volume may be published", data, err)
	}
	bad.set(nil)
	h.up(bad)
	if err := h.setUp(pod); err != nil {
		t.Fatal(err)
	}
	if want := []string{"stage", "publish"}; !slices.Equal(bad.calls, want) {
		t.Errorf("calls %q, want %q", bad.calls, want)
	}
	h.clean("u")
}

// stopsIn runs f, in which the driver's process ends in the middle of a call.
func (h *hosting) stopsIn(p *process, f func()) {
	ended, stop := context.WithCancel(h.t.Context())
	defer stop()
	p.set(func(call string) error {
		if call != "NodePublishVolume" {
			return nil
		}
		go p.server.Stop()
		<-ended.Done()
		return status.Error(codes.Unavailable, "gone")
	})
	f()
}

// A pod that ends while its driver is gone keeps what it has on the disk until the driver is back. Then all is undone.
func TestDriverGoneAtTearDown(t *testing.T) {
	h := newHosting(t)
	bad := h.driver("bad.example.com")
	h.driver("good.example.com")
	if err := h.setUp(h.pod("u", bad.name, "v")); err != nil {
		t.Fatal(err)
	}
	h.gone(bad)
	says(t, h.volumes.TearDown(t.Context(), "u"), "UnmountVolume.TearDown failed", "not found in the list of registered CSI drivers")
	h.works("other")
	if data, err := readData(h.volumes.VolumeDir("u", Name, "v")); err != nil || data.Handle != "handle-v" {
		t.Errorf("%+v, %v", data, err)
	}
	h.up(bad)
	h.clean("u")
}

// A driver that says that it can, and cannot: the event names the driver and the step, what was done is undone, and nothing is left.
func TestDriverCannot(t *testing.T) {
	for call, step := range map[string]string{
		"NodeGetCapabilities": "MountVolume.SetUp failed", "NodeStageVolume": "MountVolume.MountDevice failed",
		"NodePublishVolume": "MountVolume.SetUp failed",
	} {
		for _, code := range []codes.Code{codes.Unimplemented, codes.PermissionDenied, codes.Unknown, codes.Aborted} {
			h := newHosting(t)
			bad := h.driver("bad.example.com")
			h.driver("good.example.com")
			bad.set(func(called string) error {
				if called == call {
					return status.Errorf(code, "%s is not for you", call)
				}
				return nil
			})
			says(t, h.setUp(h.pod("u", bad.name, "v")), step, "code = "+code.String(), call+" is not for you")
			h.works("other")
			bad.set(nil)
			h.clean("u")
		}
	}
}

// A driver that says that it expands, and does not: the pod has its volume, with an event; its containers can start.
func TestDriverCannotExpand(t *testing.T) {
	h := newHosting(t)
	bad := h.driver("bad.example.com")
	pod := h.pod("u", bad.name, "v")
	if err := h.setUp(pod); err != nil {
		t.Fatal(err)
	}
	h.sources.grown = true
	bad.fail["expand"] = status.Error(codes.Unimplemented, "not today")
	says(t, h.setUp(pod), "NodeExpandVolume.NodeExpandVolume failed", "code = Unimplemented", "not today")
	if _, err := os.Stat(filepath.Join(h.volumes.VolumeDir("u", Name, "v"), "mount")); err != nil {
		t.Errorf("the pod has lost its volume: %v", err)
	}
	bad.able = nil // it changes its mind
	says(t, h.setUp(pod), "NodeExpand is not supported by the CSI driver")
	bad.able = newDriver().able
	h.clean("u")
}

// A driver whose capabilities change between calls. A device that was staged by a driver that stages no more stays, with its mount and its
// file, until the driver can; one that is staged for a second pod only is unstaged with the last one.
func TestCapabilitiesChange(t *testing.T) {
	h := newHosting(t)
	bad := h.driver("bad.example.com")
	h.driver("good.example.com")
	able := bad.able
	if err := h.setUp(h.pod("u", bad.name, "v")); err != nil {
		t.Fatal(err)
	}
	bad.able = nil
	if err := h.volumes.TearDown(t.Context(), "u"); err != nil {
		t.Errorf("the device keeps its pod: %v", err)
	}
	var told error
	h.volumes.Event = func(_ runtime.Object, _, reason, message string) { told = errors.New(reason + " " + message) }
	if err := h.volumes.DriverRegistered(t.Context(), bad.name); err == nil {
		t.Error("nothing is left to do")
	}
	says(t, told, "FailedUnmountDevice", "still mounted after the driver has unmounted it")
	if n := h.kernel.mounts(); n != 1 {
		t.Errorf("%d mounts, want the device's", n)
	}
	h.works("other")
	bad.able = able
	if err := h.volumes.DriverRegistered(t.Context(), bad.name); err != nil {
		t.Error(err)
	}
	h.clean("u")

	bad.able, bad.calls = nil, nil
	if err := h.setUp(h.pod("u1", bad.name, "v")); err != nil {
		t.Fatal(err)
	}
	bad.able = able
	if err := h.setUp(h.pod("u2", bad.name, "v")); err != nil {
		t.Fatal(err)
	}
	if err := h.volumes.TearDown(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	h.clean("u2")
	if want := []string{"publish", "stage", "publish", "unpublish", "unpublish", "unstage"}; !slices.Equal(bad.calls, want) {
		t.Errorf("calls %q, want %q", bad.calls, want)
	}
}

// A driver that damages the files of its own volume hinders no pod with another volume, and what it has written there stays until it can be
// undone.
func TestDriverDamagesFiles(t *testing.T) {
	h := newHosting(t)
	bad := h.driver("bad.example.com")
	h.driver("good.example.com")
	if err := h.setUp(h.pod("u", bad.name, "v", "w")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(h.volumes.VolumeDir("u", Name, "v"), dataFile)
	whole, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", "{", `{"driverName":""}`, strings.Repeat(" ", dataSize+1)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		h.works("other")
		if err := h.setUp(h.pod("u2", bad.name, "x")); err != nil {
			t.Errorf("with a file of %d bytes, another pod of the driver: %v", len(text), err)
		}
		if err := h.volumes.TearDown(t.Context(), "u2"); err != nil {
			t.Errorf("with a file of %d bytes, another pod of the driver: %v", len(text), err)
		}
		if err := h.volumes.TearDown(t.Context(), "u"); err == nil || !strings.Contains(err.Error(), `for volume "v"`) {
			t.Errorf("with a file of %d bytes: %v", len(text), err)
		}
	}
	if err := os.WriteFile(file, whole, 0o600); err != nil {
		t.Fatal(err)
	}
	h.clean("u")
}

// What a driver has left in its target, without a mount, is not removed: it may be data.
func TestDriverLeavesFiles(t *testing.T) {
	h := newHosting(t)
	bad := h.driver("bad.example.com")
	if err := h.setUp(h.pod("u", bad.name, "v")); err != nil {
		t.Fatal(err)
	}
	witness := filepath.Join(h.volumes.VolumeDir("u", Name, "v"), "mount", "witness")
	bad.set(func(call string) error {
		if call != "NodeUnpublishVolume" {
			return nil
		}
		return errors.Join(h.kernel.Unmount(filepath.Dir(witness)), os.WriteFile(witness, nil, 0o600), errLies)
	})
	says(t, h.volumes.TearDown(t.Context(), "u"), "failed to clean mount dir")
	if _, err := os.Stat(witness); err != nil {
		t.Errorf("the data are gone: %v", err)
	}
	bad.set(nil)
	h.clean("u")
}

// errLies has NodeUnpublishVolume say that it has succeeded.
var errLies = errors.New("lies")

// A driver that hangs holds up the pods of the volume alone: those with other volumes go on, and one that waits can be given up.
func TestDriverHangs(t *testing.T) {
	h := newHosting(t)
	bad := h.driver("bad.example.com")
	h.driver("good.example.com")
	begun, release := make(chan struct{}), make(chan struct{})
	once := sync.OnceFunc(func() { close(begun) })
	bad.set(func(call string) error {
		if call == "NodeStageVolume" {
			once()
			<-release
		}
		return nil
	})
	first := make(chan error, 1)
	pod := h.pod("u", bad.name, "v")
	waits := h.pod("u2", bad.name, "v")
	go func() { first <- h.setUp(pod) }()
	<-begun
	h.works("other")
	impatient, cancel := context.WithCancel(t.Context())
	cancel()
	says(t, h.volumes.SetUp(impatient, waits, nil))
	bad.set(nil) // only the call that hangs hangs on
	if err := h.setUp(h.pod("u3", bad.name, "w")); err != nil {
		t.Errorf("another volume of the driver: %v", err)
	}
	if err := h.volumes.TearDown(t.Context(), "u3"); err != nil {
		t.Error(err)
	}
	close(release)
	if err := <-first; err != nil {
		t.Error(err)
	}
	h.clean("u")
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dra

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// patience is how long a test waits for what must come.
const patience = time.Minute

// world is an API server that is not there, and a node's directory.
type world struct {
	*testing.T
	client *fake.Clientset
	dir    string
	boot   string
	clock  clock.Clock
	wiped  chan string // the drivers whose slices are deleted

	connected chan struct{} // connections of drivers have changed

	mu    sync.Mutex
	known map[types.UID]bool
	woken chan types.UID
}

func newWorld(t *testing.T) *world {
	// Sockets have short names.
	dir, err := os.MkdirTemp("", "dra")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return &world{
		T: t, client: fake.NewClientset(), dir: dir, boot: "boot-1", clock: clock.RealClock{}, wiped: make(chan string, 1000),
		known: map[types.UID]bool{}, woken: make(chan types.UID, 1000), connected: make(chan struct{}, 1000),
	}
}

// ResourceClaim implements API.
func (w *world) ResourceClaim(ctx context.Context, namespace, name string) (*resourceapi.ResourceClaim, error) {
	return w.client.ResourceV1().ResourceClaims(namespace).Get(ctx, name, metav1.GetOptions{})
}

// DeleteSlices implements API.
func (w *world) DeleteSlices(_ context.Context, driver string) error {
	w.wiped <- driver
	return nil
}

// Known implements Pods.
func (w *world) Known() (map[types.UID]bool, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.known), true
}

// WakeEach implements Pods.
func (w *world) WakeEach(pods []types.UID) {
	for _, uid := range pods {
		w.woken <- uid
	}
}

func (w *world) options() Options {
	return Options{
		Dir: w.dir, BootID: w.boot, API: w, Pods: w, Ledger: extension.NewLedger(clock.RealClock{}), Metrics: NewMetrics(), Clock: w.clock,
		Logger: slog.New(noted{slog.DiscardHandler, w.connected}),
	}
}

// manager makes a manager of the node's directory.
func (w *world) manager() *Manager {
	w.Helper()
	m, err := New(w.options())
	if err != nil {
		w.Fatal(err)
	}
	return m
}

// run runs a manager and the plug-in manager, until stop is called.
func (w *world) run(m *Manager) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { _ = m.Run(ctx) })
	running.Go(func() {
		err := plugins.Run(ctx, plugins.Options{
			Dir: filepath.Join(w.dir, "plugins_registry"), Handlers: map[string]plugins.Handler{PluginType: m.Handler()},
		})
		if err != nil {
			w.Error(err)
		}
	})
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	w.Cleanup(stop)
	return stop
}

// claim makes a claim that is allocated and reserved for the pods. Each result is DRIVER/REQUEST/DEVICE.
func (w *world) claim(name string, results []string, pods ...*corev1.Pod) *resourceapi.ResourceClaim {
	w.Helper()
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, r := range results {
		parts := strings.Split(r, "/")
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Driver: parts[0], Request: parts[1], Pool: "pool", Device: parts[2],
		})
	}
	for _, p := range pods {
		user := resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: p.Name, UID: p.UID}
		c.Status.ReservedFor = append(c.Status.ReservedFor, user)
	}
	_ = w.client.ResourceV1().ResourceClaims("ns").Delete(w.Context(), name, metav1.DeleteOptions{})
	if _, err := w.client.ResourceV1().ResourceClaims("ns").Create(w.Context(), c, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
	return c
}

// pod is a pod that uses the claims, under their own names, in its container c.
func pod(name string, claims ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name)}}
	p.Spec.Containers = []corev1.Container{{Name: "c"}}
	for _, c := range claims {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: &c})
		p.Spec.Containers[0].Resources.Claims = append(p.Spec.Containers[0].Resources.Claims, corev1.ResourceClaim{Name: c})
	}
	return p
}

// driver is a driver on the public library kubeletplugin. Its state outlives its instances.
type driver struct {
	w    *world
	name string

	mu       sync.Mutex
	prepared map[types.UID]bool
	calls    []string
	fail     error
	reports  chan kubeletplugin.DeviceHealthReport
	freed    chan struct{} // after each call that unprepares
}

func newDriver(w *world, name string) *driver {
	return &driver{w: w, name: name, prepared: map[types.UID]bool{}, reports: make(chan kubeletplugin.DeviceHealthReport, 10),
		freed: make(chan struct{}, 100)}
}

// start starts an instance, and waits until it is registered.
func (d *driver) start(m *Manager, options ...kubeletplugin.Option) *kubeletplugin.Helper {
	d.w.Helper()
	data := filepath.Join(d.w.dir, "plugins", d.name)
	if err := errors.Join(os.MkdirAll(data, 0o755), os.MkdirAll(filepath.Join(d.w.dir, "plugins_registry"), 0o755)); err != nil {
		d.w.Fatal(err)
	}
	h, err := kubeletplugin.Start(context.Background(), d, append([]kubeletplugin.Option{
		kubeletplugin.DriverName(d.name), kubeletplugin.NodeName("node"), kubeletplugin.KubeClient(d.w.client),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(d.w.dir, "plugins_registry")), kubeletplugin.PluginDataDirectoryPath(data),
	}, options...)...)
	if err != nil {
		d.w.Fatal(err)
	}
	d.w.Cleanup(h.Stop)
	d.await(m)
	return h
}

// await waits until the driver is registered and connected.
func (d *driver) await(m *Manager) {
	d.w.Helper()
	deadline := time.After(patience)
	for !m.drivers.usable(d.name) {
		select {
		case <-d.w.connected:
		case <-deadline:
			d.w.Fatalf("driver %s is not usable", d.name)
		}
	}
}

// noted is a logger's handler that tells of changed connections.
type noted struct {
	slog.Handler
	connected chan struct{}
}

func (noted) Enabled(context.Context, slog.Level) bool { return true }

func (n noted) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "The connection") {
		n.connected <- struct{}{}
	}
	return nil
}

func (d *driver) PrepareResourceClaims(
	_ context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[types.UID]kubeletplugin.PrepareResult{}
	var names []string
	for _, c := range claims {
		names = append(names, c.Name)
		result := kubeletplugin.PrepareResult{Err: d.fail}
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver == d.name && d.fail == nil {
				d.prepared[c.UID] = true
				result.Devices = append(result.Devices, kubeletplugin.Device{
					Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, CDIDeviceIDs: []string{d.name + "/class=" + r.Device},
				})
			}
		}
		out[c.UID] = result
	}
	slices.Sort(names)
	d.calls = append(d.calls, "prepare "+strings.Join(names, " "))
	return out, nil
}

func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[types.UID]error{}
	var names []string
	for _, c := range claims {
		names = append(names, c.Name)
		out[c.UID] = d.fail
		if d.fail == nil {
			delete(d.prepared, c.UID)
		}
	}
	slices.Sort(names)
	d.calls = append(d.calls, "unprepare "+strings.Join(names, " "))
	d.freed <- struct{}{}
	return out, nil
}

func (d *driver) HandleError(context.Context, error, string) {}

func (d *driver) WatchHealthStatus(ctx context.Context, reports chan<- kubeletplugin.DeviceHealthReport) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case r := <-d.reports:
			reports <- r
		}
	}
}

// took returns the calls since the last time.
func (d *driver) took() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := d.calls
	d.calls = nil
	return out
}

func (d *driver) failWith(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.fail = err
}

func (d *driver) calledAs(want ...string) {
	d.w.Helper()
	if diff := cmp.Diff(want, d.took()); diff != "" {
		d.w.Errorf("calls of %s (-want +got)\n%s", d.name, diff)
	}
}

func (w *world) prepare(m *Manager, p *corev1.Pod) {
	w.Helper()
	if err := m.Prepare(w.Context(), p); err != nil {
		w.Error(err)
	}
}

func (w *world) release(m *Manager, p *corev1.Pod) {
	w.Helper()
	if err := m.Release(extension.For(w.Context(), p.Namespace, p.Name), p.UID); err != nil {
		w.Error(err)
	}
}

// devices are the CDI devices of the pod's first container.
func (w *world) devices(m *Manager, p *corev1.Pod) string {
	w.Helper()
	var o containermanager.Options
	if err := m.AddOptions(w.Context(), p, &p.Spec.Containers[0], &o); err != nil {
		return err.Error()
	}
	var out []string
	for _, d := range o.CDIDevices {
		out = append(out, d.Name)
	}
	return strings.Join(out, " ")
}

func (w *world) refuses(m *Manager, p *corev1.Pod, want string) {
	w.Helper()
	err := m.Prepare(w.Context(), p)
	if want = "Failed to prepare dynamic resources: prepare dynamic resources: " + want; err == nil || !strings.HasPrefix(err.Error(), want) {
		w.Errorf("error %v\nwant  %s", err, want)
	}
}

// claims are those in the node's file.
func (w *world) claims() []string {
	w.Helper()
	read, err := readCheckpoint(filepath.Join(w.dir, checkpointName))
	if err != nil {
		w.Fatal(err)
	}
	var out []string
	for k, c := range read {
		text := fmt.Sprint(k, " of ", strings.Join(slices.Sorted(maps.Keys(c.PodUIDs)), " "))
		out = append(out, text)
	}
	slices.Sort(out)
	return out
}

func (w *world) hasClaims(want ...string) {
	w.Helper()
	if diff := cmp.Diff(want, w.claims()); diff != "" {
		w.Errorf("claims in the file (-want +got)\n%s", diff)
	}
}

func TestClaimsOfPods(t *testing.T) {
	for name, options := range map[string][]kubeletplugin.Option{
		"v1":      {kubeletplugin.NodeV1beta1(false)},
		"v1beta1": {kubeletplugin.NodeV1(false)},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			m := w.manager()
			w.run(m)
			d, e := newDriver(w, "d.test"), newDriver(w, "e.test")
			d.start(m, options...)
			e.start(m, options...)
			a, b := pod("a", "one", "shared"), pod("b", "shared")
			b.Spec.Containers[0].Resources.Claims[0].Request = "second"
			w.claim("one", []string{"d.test/r/dev1"}, a)
			w.claim("shared", []string{"d.test/first/dev2", "d.test/second/dev3", "e.test/second/dev4"}, a, b)

			w.prepare(m, a)
			d.calledAs("prepare one shared") // one call for all claims
			e.calledAs("prepare shared")
			if got, want := w.devices(m, a), "d.test/class=dev1 d.test/class=dev2 d.test/class=dev3 e.test/class=dev4"; got != want {
				t.Errorf("devices of a: %s", got)
			}
			w.prepare(m, b)
			w.prepare(m, a)
			if got, want := w.devices(m, b), "d.test/class=dev3 e.test/class=dev4"; got != want {
				t.Errorf("devices of b: %s", got)
			}
			w.hasClaims("ns/one of uid-a", "ns/shared of uid-a uid-b")
			var has podresources.ContainerResources
			m.Describe(b, &b.Spec.Containers[0], &has)
			if r := has.GetDynamicResources(); len(r) != 1 || r[0].GetClaimName() != "shared" || len(r[0].GetClaimResources()) != 3 ||
				r[0].GetClaimResources()[0].GetDeviceName() != "dev2" || r[0].GetClaimResources()[2].GetDriverName() != "e.test" {
				t.Errorf("the pod resources API has %v", r)
			}
			if s := m.Ledger.Spans("ns", "a"); len(s) != 2 || s[0].Method != "NodePrepareResources" || s[0].Object != "ns/a" {
				t.Errorf("spans of a: %v", s)
			}
			if diff := cmp.Diff(map[string]int{"<any>": 2, "d.test": 2, "e.test": 1}, m.claims.inUse()); diff != "" {
				t.Error(diff)
			}
			w.release(m, a)
			d.calledAs("unprepare one")
			if s := m.Ledger.Spans("ns", "a"); len(s) != 3 || s[2].Method != "NodeUnprepareResources" || s[2].Name != "d.test" {
				t.Errorf("spans of a after its end: %v", s)
			}
			w.hasClaims("ns/shared of uid-b")
			w.release(m, a)
			w.release(m, b)
			d.calledAs("unprepare shared")
			e.calledAs("unprepare shared")
			w.hasClaims()
			if len(d.prepared)+len(e.prepared) > 0 {
				t.Error("claims are left with the drivers")
			}
			for _, entry := range m.Ledger.Snapshot() {
				if entry.Point != extension.ResourceDriver || entry.Calls == 0 || entry.Where == "" {
					t.Errorf("ledger: %+v", entry)
				}
			}
		})
	}
}

func TestPodsThatMayNotHaveAClaim(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.run(m)
	d := newDriver(w, "d.test")
	a := pod("a", "one")
	w.refuses(m, a, `fetch ResourceClaim one: resourceclaims.resource.k8s.io "one" not found`)
	w.claim("one", []string{"d.test/r/dev1"})
	w.refuses(m, a, "pod a (uid-a) is not allowed to use ResourceClaim one (uid-one)")
	w.claim("one", []string{"d.test/r/dev1"}, a)
	w.refuses(m, a, "DRA driver d.test is not registered")
	d.start(m)
	d.failWith(errors.New("no power"))
	w.release(m, a) // nothing was noted for it
	w.hasClaims()
	w.refuses(m, a, "NodePrepareResources failed for ResourceClaim one: ")
	w.hasClaims("ns/one of uid-a")
	if got := w.devices(m, a); got != "" {
		t.Errorf("devices %s", got)
	}
	// The driver may have begun: it is asked to undo that.
	const failed = "unprepare dynamic resources: NodeUnprepareResources failed"
	if err := m.Release(t.Context(), a.UID); err == nil || !strings.HasPrefix(err.Error(), failed) {
		t.Errorf("error %v", err)
	}
	d.failWith(nil)
	w.release(m, a)
	w.hasClaims()
	d.took()

	// A claim of the same name.
	w.prepare(m, a)
	c := w.claim("one", []string{"d.test/r/dev1"}, pod("b"))
	c.UID = "uid-new"
	if _, err := w.client.ResourceV1().ResourceClaims("ns").Update(t.Context(), c, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.refuses(m, pod("b", "one"), "old ResourceClaim with same name one and different UID uid-one still exists (previous pod force-deleted?!)")
	w.hasClaims("ns/one of uid-a")
}

// A driver that was never reached holds no pod back (kubernetes/kubernetes#131957); one that was reached does.
func TestDriverThatWasNeverCalled(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	stop := w.run(m)
	d := newDriver(w, "d.test")
	d.start(m)
	gone := plugins.Plugin{Type: PluginType, Name: "gone.test", Endpoint: filepath.Join(w.dir, "gone.sock"), Versions: services}
	if err := m.Handler().Register(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	a := pod("a", "one")
	w.claim("one", []string{"d.test/r/dev1", "gone.test/r/dev2"}, a)
	w.refuses(m, a, "NodePrepareResources: rpc error: code = Unavailable")
	d.calledAs("prepare one")
	w.hasClaims("ns/one of uid-a")
	m.Handler().Deregister(t.Context(), gone)
	stop()

	// A manager that starts from the checkpoint knows it too.
	m = w.manager()
	w.run(m)
	d.await(m)
	w.release(m, a)
	d.calledAs("unprepare one")
	w.hasClaims()
}

func TestRestartOfTheNode(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	stop := w.run(m)
	d := newDriver(w, "d.test")
	h := d.start(m)
	a, b := pod("a", "one"), pod("b", "two")
	w.claim("one", []string{"d.test/r/dev1"}, a)
	w.claim("two", []string{"d.test/r/dev2"}, b)
	w.prepare(m, a)
	w.prepare(m, b)
	d.took()
	stop()

	// The pods run on: nobody is called, even without the driver.
	h.Stop()
	m = w.manager()
	stop = w.run(m)
	w.prepare(m, a)
	if got := w.devices(m, a); got != "d.test/class=dev1" {
		t.Errorf("devices %s", got)
	}
	// One pod was deleted meanwhile: its claim is freed once the driver is back.
	w.mu.Lock()
	w.known[a.UID] = true
	w.mu.Unlock()
	m.Synced()
	d.start(m)
	select {
	case <-d.freed:
	case <-time.After(patience):
		t.Fatal("the claim of the pod that is gone is not freed")
	}
	unlock, err := m.claims.lock(t.Context(), []key{{"ns", "two"}}) // until the call's end is noted
	if err != nil {
		t.Fatal(err)
	}
	unlock()
	w.hasClaims("ns/one of uid-a")
	d.calledAs("unprepare two")
	stop()

	// After a start of the machine, the driver has to prepare the claim anew.
	w.boot = "boot-2"
	m = w.manager()
	w.run(m)
	d.await(m)
	w.prepare(m, a)
	d.calledAs("prepare one")
	w.hasClaims("ns/one of uid-a")
}

func TestExtendedResources(t *testing.T) {
	w := newWorld(t)
	m := w.manager()
	w.run(m)
	d := newDriver(w, "d.test")
	d.start(m)
	a := pod("a")
	a.Spec.Containers[0].Resources.Requests = corev1.ResourceList{"example.com/gpu": *one(), "cpu": *one()}
	a.Spec.Containers = append(a.Spec.Containers, corev1.Container{Name: "other"})
	a.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{
		ResourceClaimName: "made", RequestMappings: []corev1.ContainerExtendedResourceRequest{
			{ContainerName: "c", ResourceName: "example.com/gpu", RequestName: "container-0-request-0"},
			{ContainerName: "other", ResourceName: "example.com/gpu", RequestName: "container-1-request-0"},
		},
	}
	w.claim("made", []string{"d.test/container-0-request-0/dev1", "d.test/container-1-request-0/dev2"}, a)
	w.prepare(m, a)
	if got := w.devices(m, a); got != "d.test/class=dev1" {
		t.Errorf("devices %s", got)
	}
	w.release(m, a)
	d.calledAs("prepare made", "unprepare made")
}

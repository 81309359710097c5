// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package csi

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/plugins"
)

// answering is a driver that says something of the node.
type answering struct {
	csipb.UnimplementedNodeServer
	mu   sync.Mutex
	info *csipb.NodeGetInfoResponse
}

func (a *answering) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.info, nil
}

func (a *answering) say(info *csipb.NodeGetInfoResponse) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.info = info
}

// serve serves a driver, and returns what it registers with.
func serve(t *testing.T, a *answering, name string) plugins.Plugin {
	path := filepath.Join(t.TempDir(), "s")
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	csipb.RegisterNodeServer(server, a)
	go func() { _ = server.Serve(l) }()
	t.Cleanup(server.Stop)
	return plugins.Plugin{Type: PluginType, Name: name, Endpoint: path, Versions: []string{"1.0.0"}}
}

// woken are the pods that were woken.
type woken struct {
	mu   sync.Mutex
	pods []types.UID
}

func (w *woken) WakeEach(pods []types.UID) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.pods = append(w.pods, pods...)
}

func newManager(t *testing.T) (*Manager, *fake.Clientset, *woken) {
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1"}})
	w := &woken{}
	m := New(Options{
		NodeName: "n1", Client: client, Pods: w, Resync: func() {}, Ledger: extension.NewLedger(clock.RealClock{}), Metrics: NewMetrics(),
		Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	})
	t.Cleanup(m.drivers.close)
	return m, client, w
}

// What a driver says of the node is in the CSINode and the Node, and goes with the driver, but for the labels.
func TestRegistration(t *testing.T) {
	m, client, _ := newManager(t)
	a := &answering{info: &csipb.NodeGetInfoResponse{
		NodeId: "id", MaxVolumesPerNode: 3, AccessibleTopology: &csipb.Topology{Segments: map[string]string{"zone": "z", "area": "a"}},
	}}
	p := serve(t, a, "d.example.com")
	node := func() *storagev1.CSINode {
		t.Helper()
		out, err := client.StorageV1().CSINodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if err := m.node.initialize(t.Context()); err != nil {
		t.Fatal(err)
	}
	if made := node(); len(made.OwnerReferences) != 1 || made.OwnerReferences[0].UID != "u1" ||
		!strings.HasPrefix(made.Annotations[corev1.MigratedPluginsAnnotationKey], "kubernetes.io/aws-ebs,kubernetes.io/azure-disk") {
		t.Errorf("%+v", made)
	}
	if err := m.drivers.Register(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	drivers := node().Spec.Drivers
	if len(drivers) != 1 || drivers[0].NodeID != "id" || *drivers[0].Allocatable.Count != 3 ||
		!slices.Equal(drivers[0].TopologyKeys, []string{"area", "zone"}) {
		t.Errorf("%+v", drivers)
	}
	n, err := client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || n.Labels["zone"] != "z" || n.Annotations[nodeIDs] != `{"d.example.com":"id"}` {
		t.Errorf("%v, %v, %v", n.Labels, n.Annotations, err)
	}
	want := `Another driver with the same name is already registered with a higher supported version: "1.0.0"`
	if err := m.drivers.Validate(t.Context(), p); err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("error %v", err)
	}
	// A smaller limit is published when the driver is asked anew.
	a.say(&csipb.NodeGetInfoResponse{NodeId: "id", MaxVolumesPerNode: 1, AccessibleTopology: a.info.AccessibleTopology})
	if err := m.Refresh(t.Context(), "d.example.com"); err != nil || *node().Spec.Drivers[0].Allocatable.Count != 1 {
		t.Errorf("%+v, %v", node().Spec.Drivers, err)
	}
	calls := int64(0)
	for _, e := range m.Ledger.Snapshot() {
		if e.Point == extension.StorageDriver && e.Name == "d.example.com" {
			calls = e.Calls
		}
	}
	if calls != 2 {
		t.Errorf("the ledger has %d calls of the driver, not 2", calls)
	}
	m.drivers.Deregister(t.Context(), p)
	n, err = client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if len(node().Spec.Drivers) != 0 || err != nil || n.Annotations[nodeIDs] != "" || n.Labels["zone"] != "z" {
		t.Errorf("%+v, %v, %v", node().Spec, n.Annotations, err)
	}
	if _, err := m.Node("d.example.com"); err == nil ||
		err.Error() != "driver name d.example.com not found in the list of registered CSI drivers" {
		t.Errorf("error %v", err)
	}
}

// A driver that says nothing useful, or changes a label, is not registered. The CSINode of a former node is replaced.
func TestRefusedRegistration(t *testing.T) {
	m, client, _ := newManager(t)
	for _, c := range []struct {
		info *csipb.NodeGetInfoResponse
		want string
	}{
		{&csipb.NodeGetInfoResponse{}, "driverNodeID must not be empty"},
		{&csipb.NodeGetInfoResponse{NodeId: "id", AccessibleTopology: &csipb.Topology{Segments: map[string]string{"a": "2"}}},
			`detected topology value collision: driver reported "a":"2" but existing label is "a":"1"`},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", Labels: map[string]string{"a": "1"}}}
		if _, err := client.CoreV1().Nodes().Update(t.Context(), n, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		p := serve(t, &answering{info: c.info}, "d.example.com")
		if err := m.drivers.Register(t.Context(), p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %s", err, c.want)
		}
		if m.drivers.get("d.example.com") != nil {
			t.Error("registered")
		}
	}
	for _, versions := range [][]string{nil, {"2.0.0"}, {"x"}} {
		if m.drivers.Validate(t.Context(), plugins.Plugin{Name: "d", Versions: versions}) == nil {
			t.Errorf("versions %v are taken", versions)
		}
	}
	old := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{
		Name: "n1", OwnerReferences: []metav1.OwnerReference{{Kind: "Node", Name: "n1", UID: "u0"}},
	}}
	if _, err := client.StorageV1().CSINodes().Create(t.Context(), old, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := m.node.initialize(t.Context()); err != nil {
		t.Fatal(err)
	}
	made, err := client.StorageV1().CSINodes().Get(t.Context(), "n1", metav1.GetOptions{})
	if err != nil || made.OwnerReferences[0].UID != "u1" {
		t.Errorf("%+v, %v", made, err)
	}
}

// The node says that it uses a volume, waits until its Node says that and that the volume is attached, and only then reads the attachment.
func TestAttachment(t *testing.T) {
	m, client, w := newManager(t)
	a := m.Attachments()
	name := UniqueName("d", "h")
	ask := func() bool {
		t.Helper()
		_, ok, err := a.Attached(t.Context(), "d", "h", "pod")
		if err != nil {
			t.Fatal(err)
		}
		return ok
	}
	if ask() || !slices.Equal(a.InUse(), []corev1.UniqueVolumeName{"kubernetes.io/csi/d^h"}) {
		t.Errorf("in use: %v", a.InUse())
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Status.VolumesAttached = []corev1.AttachedVolume{{Name: name}}
	a.Saw(node.DeepCopy())
	if len(w.pods) != 1 || ask() {
		t.Errorf("woken: %v", w.pods)
	}
	node.Status.VolumesInUse = []corev1.UniqueVolumeName{name}
	made := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: AttachmentName("d", "h", "n1")}}
	if _, err := client.StorageV1().VolumeAttachments().Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	a.Saw(node.DeepCopy())
	if len(w.pods) != 2 {
		t.Errorf("woken: %v", w.pods)
	}
	want := "volume h is not attached for volume attachment " + made.Name
	if _, _, err := a.Attached(t.Context(), "d", "h", "pod"); err == nil || err.Error() != want {
		t.Errorf("error %v", err)
	}
	made.Status.Attached = true
	if _, err := client.StorageV1().VolumeAttachments().Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if !ask() {
		t.Error("not attached")
	}
	if a.Release("d", "h"); len(a.InUse()) > 0 {
		t.Errorf("in use: %v", a.InUse())
	}
}

// A CSIDriver that changes wakes the pods that wait for attachments: it may say that there is none.
func TestDriverObjectWakes(t *testing.T) {
	m, _, w := newManager(t)
	if _, ok, err := m.attached.Attached(t.Context(), "d.example.com", "h", "u1"); ok || err != nil {
		t.Errorf("attached: %v, %v", ok, err)
	}
	m.changed(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d.example.com"}})
	m.changed(&storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: "d.example.com"}})
	if !slices.Equal(w.pods, []types.UID{"u1"}) {
		t.Errorf("woken: %v", w.pods)
	}
}

// What fails for a driver is tried again with back-off, at once when the driver registers, and ends when it succeeds.
func TestTelling(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, _, _ := newManager(t)
		start, left := time.Now(), 3
		var at []time.Duration
		m.OnRegister(func(_ context.Context, driver string) error {
			at = append(at, time.Since(start))
			if left--; left >= 0 {
				return errors.New(driver)
			}
			return nil
		})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- m.tellRegistered(ctx) }()
		m.LookAgain(ctx, "d")
		synctest.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond, 3500 * time.Millisecond, 7500 * time.Millisecond}
		if !slices.Equal(at, want) {
			t.Errorf("called after %v, want %v", at, want)
		}
		left, start, at = 2, time.Now(), nil
		m.LookAgain(ctx, "d")
		synctest.Wait()
		m.drivers.told <- telling{driver: "d"} // it registers
		synctest.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(at) != 3 || at[0] != 0 {
			t.Errorf("called after %v, want at once", at)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// A refusal for want of room is known by its code, and has the driver's limit read anew.
func TestExhausted(t *testing.T) {
	m, client, _ := newManager(t)
	read := 0
	m.attached.refresh = func(context.Context, string) error { read++; return nil }
	made := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: AttachmentName("d", "h", "n1")}}
	if m.attached.Exhausted(t.Context(), "d", "h") {
		t.Error("there is no attachment")
	}
	if _, err := client.StorageV1().VolumeAttachments().Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for code, want := range map[int32]bool{8: true, 13: false} {
		made.Status.AttachError, read = &storagev1.VolumeError{ErrorCode: &code}, 0
		if _, err := client.StorageV1().VolumeAttachments().Update(t.Context(), made, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if got := m.attached.Exhausted(t.Context(), "d", "h"); got != want || (read == 1) != want {
			t.Errorf("code %d: %v, read %d times", code, got, read)
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

// claimDriver is a driver on the public library kubeletplugin.
type claimDriver struct {
	mu    sync.Mutex
	fail  error
	calls []string
}

func (d *claimDriver) PrepareResourceClaims(
	_ context.Context, claims []*resourceapi.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		d.calls = append(d.calls, "prepare "+c.Name)
		out[c.UID] = kubeletplugin.PrepareResult{Err: d.fail, Devices: []kubeletplugin.Device{
			{Requests: []string{"r"}, PoolName: "pool", DeviceName: "dev1", CDIDeviceIDs: []string{"d.test/class=dev1"}},
		}}
	}
	return out, nil
}

func (d *claimDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := map[types.UID]error{}
	for _, c := range claims {
		d.calls = append(d.calls, "unprepare "+c.Name)
		out[c.UID] = nil
	}
	return out, nil
}

func (*claimDriver) HandleError(context.Context, error, string) {}

func (*claimDriver) WatchHealthStatus(ctx context.Context, _ chan<- kubeletplugin.DeviceHealthReport) error {
	<-ctx.Done()
	return nil
}

// A pod with a claim waits for the claim's driver, has its devices, and gives them back when it ends.
func TestResourceClaimsOfPods(t *testing.T) {
	c, r := newFake(t, nil)
	pod := onePod("claimer")
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: new("one")}}
	pod.Spec.Containers[0].Resources.Claims = []corev1.ResourceClaim{{Name: "gpu", Request: "r"}}
	made := c.create(pod)
	if _, err := c.client.ResourceV1().ResourceClaims("default").Create(t.Context(), &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "one", Namespace: "default", UID: "uid-of-one"},
		Status: resourceapi.ResourceClaimStatus{
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: made.Name, UID: made.UID}},
			Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
				Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: "d.test", Pool: "pool", Device: "dev1"}},
			}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.awaitEvent("claimer", "FailedPrepareDynamicResources: Failed to prepare dynamic resources: prepare dynamic resources: "+
		"DRA driver d.test is not registered")

	// Sockets have short names.
	dir, err := os.MkdirTemp("", "dra")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	d := &claimDriver{}
	h, err := kubeletplugin.Start(context.Background(), d, kubeletplugin.DriverName("d.test"), kubeletplugin.NodeName("n1"),
		kubeletplugin.KubeClient(c.client), kubeletplugin.RegistrarDirectoryPath(dir), kubeletplugin.RegistrarSocketFilename("reg.sock"),
		kubeletplugin.PluginDataDirectoryPath(dir))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.Stop)
	registry := filepath.Join(c.options.Host.RootDir, "plugins_registry")
	link := os.Symlink
	if err := errors.Join(os.MkdirAll(registry, 0o755), link(filepath.Join(dir, "reg.sock"), filepath.Join(registry, "d.sock"))); err != nil {
		t.Fatal(err)
	}
	c.await("claimer", "running", running(0))
	_, config := r.Made("claimer", "c")
	var devices []string
	for _, device := range config.CDIDevices {
		devices = append(devices, device.Name)
	}
	if diff := cmp.Diff([]string{"d.test/class=dev1"}, devices); diff != "" {
		t.Errorf("CDI devices (-want +got)\n%s", diff)
	}
	if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "claimer", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.await("claimer", "gone", func(p *corev1.Pod) bool { return p == nil })
	d.mu.Lock()
	defer d.mu.Unlock()
	if diff := cmp.Diff([]string{"prepare one", "unprepare one"}, d.calls); diff != "" {
		t.Errorf("calls (-want +got)\n%s", diff)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

//go:build linux

package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

const driverName = "gadgets.example.com"

// claims is a driver of dynamic resources with two devices. A container that has one finds its name in GADGET.
type claims struct{ cdiDir string }

// runClaims registers the driver and publishes its devices. $KUBECONFIG names the cluster, $NODE_NAME the node, and $CDI_DIR where the
// container runtime looks for CDI devices.
func runClaims(ctx context.Context, dir string) error {
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(dir, "plugins", driverName)
	if err := os.MkdirAll(data, 0o750); err != nil {
		return err
	}
	node := os.Getenv("NODE_NAME")
	helper, err := kubeletplugin.Start(ctx, &claims{cdiDir: os.Getenv("CDI_DIR")}, kubeletplugin.KubeClient(client),
		kubeletplugin.DriverName(driverName), kubeletplugin.NodeName(node), kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(dir, "plugins_registry")))
	if err != nil {
		return err
	}
	defer helper.Stop()
	devices := []resourcev1.Device{{Name: "gadget-0"}, {Name: "gadget-1"}}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		node: {Slices: []resourceslice.Slice{{Devices: devices}}}}}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// PrepareResourceClaims makes a CDI device for each device of the claims. It may be called again for the same claim.
func (c *claims) PrepareResourceClaims(
	_ context.Context, all []*resourcev1.ResourceClaim,
) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range all {
		var result kubeletplugin.PrepareResult
		var devices []map[string]any
		for _, a := range claim.Status.Allocation.Devices.Results {
			if a.Driver != driverName {
				continue
			}
			result.Devices = append(result.Devices, kubeletplugin.Device{Requests: []string{a.Request}, PoolName: a.Pool, DeviceName: a.Device,
				CDIDeviceIDs: []string{"example.com/gadget=" + string(claim.UID) + "-" + a.Device}})
			devices = append(devices, map[string]any{"name": string(claim.UID) + "-" + a.Device,
				"containerEdits": map[string]any{"env": []string{"GADGET=" + a.Device}}})
		}
		spec, err := json.Marshal(map[string]any{"cdiVersion": "0.6.0", "kind": "example.com/gadget", "devices": devices})
		if err == nil {
			err = os.WriteFile(c.file(claim.UID), spec, 0o644)
		}
		result.Err = err
		results[claim.UID] = result
	}
	return results, nil
}

// UnprepareResourceClaims removes the CDI devices. The claims may be gone from the API.
func (c *claims) UnprepareResourceClaims(_ context.Context, all []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range all {
		results[claim.UID] = nil
		if err := os.Remove(c.file(claim.UID)); err != nil && !os.IsNotExist(err) {
			results[claim.UID] = err
		}
	}
	return results, nil
}

func (c *claims) file(claim types.UID) string {
	return filepath.Join(c.cdiDir, "example.com-gadget_"+string(claim)+".json")
}

// HandleError is called for errors in the background, as when a ResourceSlice is not valid.
func (c *claims) HandleError(_ context.Context, err error, message string) {
	slog.Warn("The driver failed", "doing", message, "error", err)
}

// WatchHealthStatus would report the health of the devices.
func (c *claims) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

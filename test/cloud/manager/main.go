// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Program manager is the controller manager of a cloud, as each cloud's is made: the main of k8s.io/cloud-provider/sample with a cloud,
// which is that of k8s.io/cloud-provider/fake. POST /lose and /stop tell the cloud, at the address in the environment variable
// CLOUD_ADDRESS, that all its machines are gone or have stopped; GET /routes lists its routes.
package main

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	cloudprovider "k8s.io/cloud-provider"
	"k8s.io/cloud-provider/app"
	"k8s.io/cloud-provider/app/config"
	"k8s.io/cloud-provider/fake"
	"k8s.io/cloud-provider/names"
	"k8s.io/cloud-provider/options"
	"k8s.io/component-base/cli"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/klog/v2"
)

func main() {
	cloud := &fake.Cloud{
		EnableInstancesV2: true, ExistsByProviderID: true, Exists: true, RouteMap: map[string]*fake.Route{},
		ProviderID: map[types.NodeName]string{"simulated-0": "fake://zero", "simulated-1": "fake://one"},
		InstanceTypes: map[types.NodeName]string{
			"": "fake.large", "fake://zero": "fake.large", "fake://one": "fake.large",
		},
		Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}, {Type: corev1.NodeExternalIP, Address: "198.51.100.9"},
		},
		ExternalIP: net.ParseIP("203.0.113.7"),
		Zone:       cloudprovider.Zone{FailureDomain: "zone-1", Region: "region-1"},
	}
	cloudprovider.RegisterCloudProvider("fake", func(io.Reader) (cloudprovider.Interface, error) { return cloud, nil })
	go control(cloud)
	opts, err := options.NewCloudControllerManagerOptions()
	if err != nil {
		klog.Fatalf("make options: %v", err)
	}
	start := func(c *config.CompletedConfig) cloudprovider.Interface {
		made, err := cloudprovider.InitCloudProvider(c.ComponentConfig.KubeCloudShared.CloudProvider.Name, "")
		if err != nil {
			klog.Fatalf("make cloud: %v", err)
		}
		return made
	}
	os.Exit(cli.Run(app.NewCloudControllerManagerCommand(opts, start, app.DefaultInitFuncConstructors, names.CCMControllerAliases(),
		cliflag.NamedFlagSets{}, wait.NeverStop)))
}

// control lets the test tell the cloud what happens to its machines.
func control(cloud *fake.Cloud) {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /stop", func(http.ResponseWriter, *http.Request) { cloud.NodeShutdown = true })
	mux.HandleFunc("POST /lose", func(http.ResponseWriter, *http.Request) { cloud.ExistsByProviderID = false })
	mux.HandleFunc("GET /routes", func(w http.ResponseWriter, _ *http.Request) {
		cloud.Lock.Lock()
		defer cloud.Lock.Unlock()
		var out []string
		for _, r := range cloud.RouteMap {
			out = append(out, string(r.Route.TargetNode)+" "+r.Route.DestinationCIDR)
		}
		slices.Sort(out)
		_ = json.NewEncoder(w).Encode(out)
	})
	server := http.Server{Addr: os.Getenv("CLOUD_ADDRESS"), Handler: mux, ReadHeaderTimeout: time.Second}
	klog.Fatalf("serve: %v", server.ListenAndServe())
}

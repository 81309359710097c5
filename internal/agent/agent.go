// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// Options configure a node. NodeName, RuntimeEndpoint and one of Config and Client are required; all other fields have defaults.
type Options struct {
	NodeName string
	Config   *rest.Config         // connects to the API server
	Client   kubernetes.Interface // replaces Config

	RuntimeEndpoint string // CRI socket, with or without unix://

	// Kubelet is the complete kubelet configuration (package kubeletconfig). The other options override it. Nil means kubelet's defaults,
	// except where Mortise chooses its own (see [Effective]).
	Kubelet *configv1beta1.KubeletConfiguration

	Host   HostOptions
	CNI    CNIOptions
	Server ServerOptions

	ImageCredentials ImageCredentialsOptions

	// ClusterDNS returns the addresses of the cluster's DNS servers; the node calls it for each pod. Nil means Kubelet's.
	ClusterDNS func() []string

	// Addresses are the node's addresses. The caller keeps them up to date. Nil means that the node finds and follows the machine's.
	Addresses Addresses

	Labels     map[string]string // of the Node object, beside the well-known ones
	DecodePods DecodePods        // reads the manifests of static pods; nil: the node runs none
	Volumes    []volumes.Factory // the volume plug-ins; a volume of another type fails

	Ledger   *extension.Ledger // counts the calls of plug-ins; nil: a private one
	Metrics  *Metrics          // the node's metrics; nil: none
	Recorder record.EventRecorder
	Logger   *slog.Logger
	Clock    clock.WithTicker

	// Started is called once, when the node is registered and watches its pods.
	Started func(Node)
}

// CloudOptions are the contract with a cloud, and the machine's place in its network.
type CloudOptions struct {
	// External leaves the node's initialization and its addresses to a cloud's controller manager.
	External bool
	// Given says that Addresses are configured: the controller manager has to confirm them.
	Given bool
	// Outside are the addresses at which the network reaches the machine, if Addresses are out of reach there; nil: they are not.
	Outside Addresses
}

// HostOptions say which parts of its machine a node uses, and where the machine is.
type HostOptions struct {
	// Cloud is the node's part of the contract with a cloud's controller manager.
	Cloud   CloudOptions
	RootDir string // /var/lib/kubelet
	// Links is kubelet's usual directory, /var/lib/kubelet, in which a node with another RootDir makes links to its own directories. Empty:
	// it makes none.
	Links string
	// PluginWait is how long pods are held for a device plug-in that was there before the node restarted; 0: five minutes.
	PluginWait time.Duration

	// CSIDrivers are CSI drivers that pods wait for until they register, with a condition that names the driver.
	CSIDrivers []string

	// LocalStorage is the directory of the volumes of storage.mortise.dev; empty: the node does not run that driver.
	LocalStorage string

	LogDir   string // of pods' logs: podLogsDir of the kubelet configuration, else /var/log/pods
	CgroupFS string // the mount point of the cgroup file systems: /sys/fs/cgroup
	SysFS    string // the mount point of sysfs: /sys
	Mounter  volumes.Mounter

	// Measure returns observations of all resources that eviction watches. Nil means that the node measures the machine and the runtime.
	Measure func(ctx context.Context) evict.Observations
}

// CNIOptions configure the pods' network. The node installs a CNI configuration in ConfDir if that has none.
type CNIOptions struct {
	ConfDir string   // /etc/cni/net.d; "-": the node installs nothing
	BinDirs []string // /opt/cni/bin, /usr/lib/cni
	DataDir string   // of host-local's leases; the plug-in's own default
	Bridge  string   // mortise0
	PodCIDR string   // empty: the podCIDR of the Node object
	MTU     int      // of pods' packets; 0: the machine's

	// Masqueraded means that another component masquerades the pods' traffic to outside the cluster. Otherwise the CNI plug-in
	// masquerades it, and pods of other nodes see the node's address as well.
	Masqueraded bool
}

// ServerOptions configure the server of the node's own API.
type ServerOptions struct {
	// Serve serves the API. Nil means that the node serves nothing, and that its pods have no logs or exec.
	Serve  ServeFunc
	Listen string // host:port; ":10250" is usual. Port 0 is 10250 if that is free, else any free port.
	TLS    *tls.Config
	// ReadOnly serves the API's read-only port, if the kubelet configuration has one, to every client and without TLS. Nil means that there
	// is none.
	ReadOnly ServeFunc
	// Admit, if set, wraps the listener with one that accepts some of the connections.
	Admit func(net.Listener) net.Listener
}

// ImageCredentialsOptions configure the node's image credential providers. Without Config there are none.
type ImageCredentialsOptions struct {
	Config string // the file, or the directory of files, of a CredentialProviderConfig
	BinDir string // the directory of the providers' programs
}

func (o Options) withDefaults() (Options, error) {
	if o.NodeName == "" || o.RuntimeEndpoint == "" || o.Config == nil && o.Client == nil {
		return o, errors.New("a node needs a name, a runtime's endpoint and an API server")
	}
	o.heed()
	def := func(s *string, value string) {
		if *s == "" {
			*s = value
		}
	}
	def(&o.Host.RootDir, "/var/lib/kubelet")
	def(&o.Host.LogDir, "/var/log/pods")
	def(&o.Host.SysFS, "/sys")
	def(&o.CNI.ConfDir, cni.DefaultDir)
	if len(o.CNI.BinDirs) == 0 {
		o.CNI.BinDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Ledger == nil {
		o.Ledger = extension.NewLedger(o.Clock)
	}
	if o.Host.Mounter == nil {
		o.Host.Mounter = volumes.System{}
	}
	if o.Client == nil {
		config := rest.CopyConfig(o.Config)
		if config.QPS == 0 {
			config.QPS, config.Burst = 50, 100 // kubelet's
		}
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			return o, fmt.Errorf("make client: %w", err)
		}
		o.Client = client
	}
	for _, dir := range []*string{&o.Host.RootDir, &o.Host.LogDir, &o.Host.LocalStorage} {
		if *dir == "" {
			continue
		}
		abs, err := filepath.Abs(*dir)
		if err != nil {
			return o, fmt.Errorf("find directory %s: %w", *dir, err)
		}
		*dir = abs
	}
	return o, nil
}

// DecodePods reads a manifest of static pods for the node of the name.
type DecodePods func(data []byte, source string, file bool, node string) ([]*corev1.Pod, error)

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

	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
)

// Options are what a node is made from. NodeName, RuntimeEndpoint and one of Config and
// Client are required; all else has a default.
type Options struct {
	NodeName string
	Config   *rest.Config         // of the API server
	Client   kubernetes.Interface // instead of Config

	RuntimeEndpoint string // CRI socket, with or without unix://

	RootDir string // /var/lib/kubelet
	LogDir  string // /var/log/pods

	// CNI configuration is installed in CNIConfDir (/etc/cni/net.d) where none exists, for PodCIDR
	// or, where that is empty, for the podCIDR that the Node is given. "-" installs nothing.
	CNIConfDir string
	CNIBinDirs []string // /opt/cni/bin, /usr/lib/cni
	CNIDataDir string   // of host-local's leases; the plug-in's own default
	CNIBridge  string   // mortise0
	PodCIDR    string
	// Masqueraded is set if another component masquerades the pods' traffic to outside the cluster. If not, the CNI plug-in
	// does, and pods of other nodes see the node's address as well.
	Masqueraded bool
	PodMTU      int // of pods' packets; 0: as the machine has it

	ClusterDNS    func() []string // what pods ask for names, read for each pod; nil: what Kubelet says
	ClusterDomain string          // cluster.local

	// Kubelet is how the node is to be, with nothing left open (package kubeletconfig). What the options above say goes
	// before it. Nil: kubelet's defaults, as far as the node brings no choices of its own.
	Kubelet *configv1beta1.KubeletConfiguration

	// DecodePods reads the manifests of static pods; nil: there are none.
	DecodePods DecodePods

	// NodeIPs are the node's configured addresses. Without them the node has those of Addresses, which the caller runs, and
	// without these it finds and follows the machine's.
	NodeIPs   []string
	Addresses Addresses

	Labels  map[string]string // beside the well-known ones
	MaxPods int64             // 110

	// The node's own API is served on Listen (host:port; ":10250" is usual) by API with TLS. Port 0 is 10250 where that is free, else
	// any free port. Without API nothing is served, and pods have no logs or exec.
	Listen string
	TLS    *tls.Config
	API    ServeFunc
	// Admit, if set, wraps the listener of the node's API with one that accepts some of the connections.
	Admit func(net.Listener) net.Listener

	// Relist is how often the runtime is asked for everything, as a safety under its
	// events: one second where it has no events, ten where it has.
	Relist time.Duration

	// CgroupFS is where the kernel shows its cgroups: /sys/fs/cgroup.
	CgroupFS string

	// Measure says what there is of everything that can run short; nil: the machine and the runtime are asked.
	Measure func(ctx context.Context) evict.Observations

	Metrics  *Metrics // the node's metrics; nil: none
	Mounter  volumes.Mounter
	Volumes  []volumes.Factory // the plug-ins that make volumes; a volume of another type fails
	Recorder record.EventRecorder
	Logger   *slog.Logger
	Clock    clock.WithTicker

	// Started is called once, when the node is registered and follows its pods.
	Started func(Node)
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
	def(&o.RootDir, "/var/lib/kubelet")
	def(&o.LogDir, "/var/log/pods")
	def(&o.CNIConfDir, cni.DefaultDir)
	def(&o.ClusterDomain, "cluster.local")
	if len(o.CNIBinDirs) == 0 {
		o.CNIBinDirs = []string{"/opt/cni/bin", "/usr/lib/cni"}
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
	if o.Mounter == nil {
		o.Mounter = volumes.System{}
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
	for _, dir := range []*string{&o.RootDir, &o.LogDir} {
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

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/klog/v2"
	configv1beta1 "k8s.io/kubelet/config/v1beta1"
	"k8s.io/utils/clock"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/probe"
	"github.com/mortise-dev/mortise/internal/agent/pullmanager"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
	"github.com/mortise-dev/mortise/internal/agent/staticpods"
	"github.com/mortise-dev/mortise/internal/agent/uplink"
	"github.com/mortise-dev/mortise/internal/agent/userns"
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
	// Masqueraded says that somebody else gives the node's address to what pods send out of the cluster. If not, the CNI
	// plug-in does, and pods of other nodes see the node as well.
	Masqueraded bool
	PodMTU      int // of pods' packets; 0: as the machine has it

	ClusterDNS    []string
	ClusterDomain string // cluster.local

	// Kubelet is how the node is to be, with nothing left open (package kubeletconfig). What the options above say goes
	// before it. Nil: kubelet's defaults, as far as the node brings no choices of its own.
	Kubelet *configv1beta1.KubeletConfiguration

	// DecodePods reads the manifests of static pods; nil: there are none.
	DecodePods DecodePods

	// NodeIPs are the node's addresses, which were given. Without them the node has those of Addresses, which somebody else runs, and
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

	Metrics  *Metrics // what the node counts; nil: nobody reads it
	Mounter  volumes.Mounter
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

// node is a running node.
type node struct {
	Options
	client   kubernetes.Interface
	cri      *cri.Client
	config   runconfig.Node
	machine  hardware
	volumes  *volumes.Manager
	users    *userns.Table
	probes   *probe.Manager
	measured measured // volumes
	objects  *objects
	services corev1listers.ServiceLister
	recorder record.EventRecorder
	hooks    []hook
	settings settings
	static   statics
	finds    *uplink.Addresses // which are the node's own to follow; nil: none

	pressure  pressure
	collector collector

	containerBackoff, imageBackoff *backoff.Table

	port      int32    // of the node's API
	installed []string // the ranges of the CNI configuration; the heartbeat's own

	mu      sync.Mutex
	workers map[types.UID]*worker
	running sync.WaitGroup  // of workers
	ctx     context.Context // of workers
	synced  bool            // the pods of this node are all known
	leaving bool            // the node shuts down
	ready   readiness
	changed chan struct{} // the node's condition may have changed

	handlers     []corev1.NodeRuntimeHandler  // of the runtime
	able         []*runtimeapi.RuntimeHandler // the same, as the runtime says it
	strictGroups bool                         // the runtime knows SupplementalGroupsPolicy

	pullFailures map[string]failure
	pulls        *pullmanager.Manager // nil: a pod may use every image of the node
	images       []corev1.ContainerImage
}

// Run registers the node and makes its pods real, until ctx is done. Pods go on running
// after it has returned.
func Run(ctx context.Context, options Options) error {
	o, err := options.withDefaults()
	if err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, klog.Logger{})
	runtime, err := cri.Dial(ctx, o.RuntimeEndpoint)
	if err != nil {
		return err
	}
	defer runtime.Close(context.WithoutCancel(ctx))

	n := &node{
		Options: o, client: o.Client, cri: runtime,
		containerBackoff: backoff.New(o.restartPeriod()), imageBackoff: backoff.New(backoff.Max),
		workers: map[types.UID]*worker{}, changed: make(chan struct{}, 1),
		pullFailures: map[string]failure{}, pressure: pressure{eased: make(chan struct{})},
	}
	if n.Measure == nil {
		n.Measure = n.measure
	}
	if err := n.prepare(ctx); err != nil {
		return err
	}
	var listener net.Listener
	if o.API != nil {
		if listener, err = n.listen(); err != nil {
			return err
		}
		defer listener.Close()
	}
	health, err := n.listenHealthz(ctx)
	if err != nil {
		return err
	}
	if health != nil {
		defer health.Close()
	}
	outer := ctx
	ctx, leave := n.outlast(ctx)
	defer leave()
	group, ctx := errgroup.WithContext(ctx)
	n.ctx = ctx
	for _, there := range []prometheus.Collector{newNodeCollector(n), newRecordCollector(n)} {
		if err := n.Metrics.registry.Register(there); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
		defer n.Metrics.registry.Unregister(there)
	}
	n.objects = newObjects(ctx, n.client, n.NodeName, n.wakeUsers)
	n.volumes.Sources = n.objects
	n.volumes.Warn = func(pod *corev1.Pod, reason, message string) {
		n.recorder.Event(pod, corev1.EventTypeWarning, reason, message)
	}
	n.hooks = hooks(n)

	if o.Recorder == nil {
		client, err := o.eventClient()
		if err != nil {
			return err
		}
		broadcaster := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))
		broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
		defer broadcaster.Shutdown()
		n.recorder = broadcaster.NewRecorder(eventScheme(), corev1.EventSource{Component: "kubelet", Host: n.NodeName})
	} else {
		n.recorder = o.Recorder
	}
	n.askRuntime(ctx)
	all := informers.NewSharedInformerFactory(n.client, 0)
	n.services = all.Core().V1().Services().Lister()
	sources := n.staticSources()
	group.Go(func() error { return staticpods.Run(ctx, sources) })
	group.Go(func() error { return n.watchRuntime(ctx) })
	if n.finds != nil {
		group.Go(func() error { return n.finds.Run(ctx) })
	}
	group.Go(func() error { return n.collectGarbage(ctx) })
	group.Go(func() error { return n.rotateLogs(ctx) })
	group.Go(func() error { return n.removeOrphans(ctx) })
	group.Go(func() error { return n.watchPressure(ctx) })
	group.Go(func() error { return n.shutDown(outer, ctx, leave) })
	group.Go(func() error { return n.collectImages(ctx) })
	if health != nil {
		group.Go(func() error { return n.serveHealthz(ctx, health) })
	}
	if listener != nil {
		group.Go(func() error { return o.API(ctx, n, listener) })
	}
	// All above goes on without an API server; the rest begins when there is one.
	var factories []informers.SharedInformerFactory
	group.Go(func() error {
		if err := n.registerAtLast(ctx); err != nil || ctx.Err() != nil {
			return err
		}
		podInformer, following, err := n.follow(ctx, all)
		factories = following
		if err != nil {
			return err
		}
		group.Go(func() error { return n.heartbeat(ctx) })
		if !cache.WaitForCacheSync(ctx.Done(), podInformer.HasSynced) {
			return nil
		}
		n.mu.Lock()
		n.synced = true
		for _, w := range n.workers {
			w.wake()
		}
		n.mu.Unlock()
		n.lookForOrphans()
		if o.Started != nil {
			o.Started(n)
		}
		return nil
	})
	err = group.Wait()
	// No new work first, then those who do it, then those whom they asked.
	for _, f := range factories {
		f.Shutdown()
	}
	n.running.Wait()
	n.objects.wait()
	n.probes.Wait()
	return err
}

// prepare finds out what the node has, and makes its parts.
func (n *node) prepare(ctx context.Context) error {
	err := checkMachine(n.Kubelet)
	if err != nil {
		return err
	}
	if n.machine, err = look(n.RootDir); err != nil {
		return err
	}
	if err := n.readSettings(); err != nil {
		return err
	}
	if err := n.findAddresses(ctx); err != nil {
		return err
	}
	driver, err := n.cri.CgroupDriver(ctx, driver(n.Kubelet))
	if err != nil {
		return err
	}
	n.config = runconfig.Node{
		LogDir: n.LogDir, ClusterDNS: n.ClusterDNS, ClusterDomain: n.ClusterDomain, CgroupDriver: driver,
		MemoryBytes: n.machine.memory, LowestOOMScore: n.machine.lowestOOMScore,
		CgroupRoot: n.Kubelet.CgroupRoot, Flat: !*n.Kubelet.CgroupsPerQOS, SeccompDefault: *n.Kubelet.SeccompDefault,
		NoQuota: !*n.Kubelet.CPUCFSQuota, QuotaPeriod: n.Kubelet.CPUCFSQuotaPeriod.Duration,
	}
	n.config.Swap = runconfig.Swap{
		Bound: boundsSwap(), Unified: unified(), Limited: n.Kubelet.MemorySwap.SwapBehavior == "LimitedSwap" && unified(), Bytes: n.machine.swap,
	}
	// With its gate off, a factor is only kubelet's old default.
	if on, written := n.Kubelet.FeatureGates["MemoryQoS"]; n.Kubelet.MemoryThrottlingFactor != nil && unified() && (on || !written) {
		memory := n.allocatable()[corev1.ResourceMemory]
		n.config.Throttle = runconfig.Throttle{Factor: *n.Kubelet.MemoryThrottlingFactor, Allocatable: memory.Value()}
	}
	for _, p := range n.machine.hugePages {
		n.config.HugePages = append(n.config.HugePages, p.size)
	}
	if text, err := os.ReadFile(*n.Kubelet.ResolverConfig); err == nil {
		n.config.HostServers, n.config.HostSearches, n.config.HostOptions = runconfig.ParseResolvConf(string(text))
	}
	n.volumes = &volumes.Manager{Root: n.RootDir, Mounter: n.Mounter, Clock: n.Clock, HostIPs: n.ips, Allocatable: n.allocatable()}
	n.probes = &probe.Manager{
		Prober: &probe.Prober{Exec: n.execForProbe}, Clock: n.Clock,
		Changed: n.wake, Report: n.reportProbe,
	}
	for _, dir := range []string{filepath.Join(n.RootDir, "pods"), n.LogDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make node's directory: %w", err)
		}
	}
	if err := n.openPulls(ctx); err != nil {
		return err
	}
	if err := n.adoptUsers(ctx); err != nil {
		return err
	}
	if n.PodCIDR != "" {
		return n.installCNI(false, n.PodCIDR)
	}
	return nil
}

// installCNI configures the pod network where nobody else has. Again: also if it is as it should be already.
func (n *node) installCNI(again bool, cidrs ...string) error {
	if n.CNIConfDir == "-" {
		return nil
	}
	path, ours, err := cni.Install(cni.Options{
		Dir: n.CNIConfDir, BinDirs: n.CNIBinDirs, PodCIDRs: cidrs, DataDir: n.CNIDataDir, Bridge: n.CNIBridge, MTU: n.PodMTU,
		Masquerade: !n.Masqueraded, Again: again,
	})
	if err != nil {
		return fmt.Errorf("install CNI configuration: %w", err)
	}
	n.Logger.Info("pod network configured", "file", path, "ours", ours, "again", again)
	return nil
}

func (n *node) listen() (net.Listener, error) {
	listener, err := listenAt(n.Listen)
	if err != nil {
		return nil, fmt.Errorf("listen for the node's API: %w", err)
	}
	n.port = int32(listener.Addr().(*net.TCPAddr).Port)
	if n.Admit != nil {
		listener = n.Admit(listener)
	}
	if n.TLS != nil {
		listener = tls.NewListener(listener, n.TLS)
	}
	return listener, nil
}

// usualPort is the port of a kubelet's API.
const usualPort = "10250"

// listenAt listens on host:port. Without a port it is 10250; port 0 is 10250 where that is free, else any free port.
func listenAt(address string) (net.Listener, error) {
	host, port, err := net.SplitHostPort(cmp.Or(address, ":"+usualPort))
	if err != nil {
		return nil, err
	}
	if port == "0" {
		l, err := net.Listen("tcp", net.JoinHostPort(host, usualPort))
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
	return net.Listen("tcp", net.JoinHostPort(host, port))
}

// follow starts the informers: this node's pods, and all services for the environment.
func (n *node) follow(ctx context.Context, all informers.SharedInformerFactory) (cache.SharedIndexInformer, []informers.SharedInformerFactory, error) {
	mine := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", n.NodeName).String()
	}))
	serviceInformer := all.Core().V1().Services().Informer()
	pods := mine.Core().V1().Pods().Informer()
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { n.podTold(obj.(*corev1.Pod)) },
		UpdateFunc: func(old, obj any) { n.podChanged(old.(*corev1.Pod), obj.(*corev1.Pod)) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				n.podDeleted(pod)
			}
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("follow pods: %w", err)
	}
	factories := []informers.SharedInformerFactory{all, mine}
	if n.PodCIDR == "" && n.CNIConfDir != "-" {
		own, err := n.followOwn()
		if err != nil {
			return nil, nil, err
		}
		factories = append(factories, own)
		own.Start(ctx.Done())
	}
	all.Start(ctx.Done())
	// A pod's environment has the services that were there before it: they come first.
	if !cache.WaitForCacheSync(ctx.Done(), serviceInformer.HasSynced) {
		return pods, factories, nil
	}
	mine.Start(ctx.Done())
	return pods, factories, nil
}

// followOwn makes the informer of the node itself, which tells when it is given its range of addresses.
func (n *node) followOwn() (informers.SharedInformerFactory, error) {
	own := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("metadata.name", n.NodeName).String()
	}))
	given := func(before, now *corev1.Node) {
		if now.Name == n.NodeName && !slices.Equal(before.Spec.PodCIDRs, now.Spec.PodCIDRs) {
			n.runtimeTrouble() // the heartbeat looks
		}
	}
	_, err := own.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { given(&corev1.Node{}, obj.(*corev1.Node)) },
		UpdateFunc: func(old, obj any) { given(old.(*corev1.Node), obj.(*corev1.Node)) },
	})
	if err != nil {
		return nil, fmt.Errorf("follow own node: %w", err)
	}
	return own, nil
}

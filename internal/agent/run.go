// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/mortise-dev/mortise/internal/agent/allocatable"
	"github.com/mortise-dev/mortise/internal/agent/backoff"
	"github.com/mortise-dev/mortise/internal/agent/cgroups"
	"github.com/mortise-dev/mortise/internal/agent/cni"
	"github.com/mortise-dev/mortise/internal/agent/containerhooks"
	"github.com/mortise-dev/mortise/internal/agent/containerlog"
	"github.com/mortise-dev/mortise/internal/agent/containermanager"
	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/csi"
	"github.com/mortise-dev/mortise/internal/agent/devicemanager"
	"github.com/mortise-dev/mortise/internal/agent/dra"
	"github.com/mortise-dev/mortise/internal/agent/eviction"
	"github.com/mortise-dev/mortise/internal/agent/hardware"
	"github.com/mortise-dev/mortise/internal/agent/imagecredentials"
	"github.com/mortise-dev/mortise/internal/agent/images"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/localstorage"
	"github.com/mortise-dev/mortise/internal/agent/nodeaddress"
	"github.com/mortise-dev/mortise/internal/agent/nodestatus"
	"github.com/mortise-dev/mortise/internal/agent/objectcache"
	"github.com/mortise-dev/mortise/internal/agent/pleg"
	"github.com/mortise-dev/mortise/internal/agent/podadmission"
	"github.com/mortise-dev/mortise/internal/agent/podgc"
	"github.com/mortise-dev/mortise/internal/agent/podkiller"
	"github.com/mortise-dev/mortise/internal/agent/podresize"
	"github.com/mortise-dev/mortise/internal/agent/podstats"
	"github.com/mortise-dev/mortise/internal/agent/podstreams"
	"github.com/mortise-dev/mortise/internal/agent/podworkers"
	"github.com/mortise-dev/mortise/internal/agent/rootlinks"
	"github.com/mortise-dev/mortise/internal/agent/runconfig"
	"github.com/mortise-dev/mortise/internal/agent/shutdown"
	"github.com/mortise-dev/mortise/internal/agent/static"
	"github.com/mortise-dev/mortise/internal/agent/userns"
	"github.com/mortise-dev/mortise/internal/agent/volumes"
	"github.com/mortise-dev/mortise/internal/eventsink"
)

// node is a running node.
type node struct {
	Options
	client    kubernetes.Interface
	cri       *cri.Client
	config    runconfig.Node
	exclusive exclusive
	resources allocatable.Node
	settings  settings
	finds     *nodeaddress.Addresses // if the node follows them itself; nil: it does not
	recorder  record.EventRecorder
	port      int32 // of the node's API
	rooms
}

// rooms are the components of a node.
type rooms struct {
	workers    *podworkers.Manager
	volumes    *volumes.Manager
	objects    *objectcache.Manager
	garbage    *podgc.Manager
	streams    *podstreams.Server
	stats      *podstats.Provider
	images     *images.Manager
	providers  *imagecredentials.Providers // nil: there are none
	nodeStatus *nodestatus.Manager
	eviction   *eviction.Manager
	shutdown   *shutdown.Manager
	static     *static.Manager
	managers   *containermanager.Manager // of devices, claims, CPUs and memory
	devices    *devicemanager.Manager
	claims     *dra.Manager
	storage    *csi.Manager
	local      *localstorage.Deleter // nil: the node does not run the driver
}

// part is a part of the node that runs concurrently with the others.
type part struct {
	name string
	run  func(ctx context.Context) error // until ctx is done; nil: nothing runs
	stop func()                          // called when all parts have ended; nil: there is nothing to stop
}

// Run registers the node and runs its pods, until ctx is done. Pods continue to run after it has returned.
func Run(ctx context.Context, options Options) (err error) {
	o, err := options.withDefaults()
	if err != nil {
		return err
	}
	ctx = klog.NewContext(ctx, klog.Logger{})
	dialed, err := cri.Dial(ctx, o.RuntimeEndpoint)
	if err != nil {
		return err
	}
	defer dialed.Close(context.WithoutCancel(ctx))
	dialed.Measure(o.Metrics.runtime, o.Clock.Now)

	n := &node{Options: o, client: o.Client, cri: dialed}
	if err := n.prepare(ctx); err != nil {
		return err
	}
	unlink, err := rootlinks.Make(o.Host.Links, o.Host.RootDir, o.Logger)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlink()) }()
	var listener net.Listener
	if o.Server.Serve != nil {
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
	readOnly, err := readOnlyPort{n}.listen(ctx)
	if err != nil {
		return err
	}
	if readOnly != nil {
		defer readOnly.Close()
	}
	outer := ctx
	ctx, leave := shutdown.Outlast(ctx, n.Kubelet)
	defer leave()
	group, ctx := errgroup.WithContext(ctx)
	stopEvents, err := n.recordEvents(ctx)
	if err != nil {
		return err
	}
	defer stopEvents()
	all := informers.NewSharedInformerFactory(n.client, 0)
	if err := n.buildParts(ctx, all.Core().V1().Services().Lister()); err != nil {
		return err
	}
	for _, there := range []prometheus.Collector{
		podstats.NewCollector(n.NodeName, n.stats), n.images.Collector(), podworkers.Counts(n.workers), n.volumes.Total(),
	} {
		if err := n.Metrics.registry.Register(there); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
		defer n.Metrics.registry.Unregister(there)
	}
	n.nodeStatus.CheckRuntime(ctx)

	logs := containerlog.New(containerlog.Options{
		Runtime: n.cri, Pods: n.workers, Config: n.config, MaxBytes: n.settings.logBytes, MaxFiles: int(*n.Kubelet.ContainerLogMaxFiles),
		Period: n.Kubelet.ContainerLogMonitorInterval.Duration, Clock: n.Clock, Logger: n.Logger,
	})
	events := pleg.New(pleg.Config{
		Runtime: n.cri, Workers: n.workers, Status: n.nodeStatus, Clock: n.Clock, Logger: n.Logger, Metrics: n.Metrics.relists,
	})
	following := &following{services: all}
	parts := []part{
		{name: "static pods", run: n.static.Run},
		{name: "pod lifecycle events", run: events.Run},
		{name: "pod network", run: n.nodeStatus.WatchNetwork},
		{name: "node addresses", run: n.followAddresses},
		{name: "pod directories", run: n.garbage.Run},
		{name: "log rotation", run: logs.Run},
		{name: "plug-ins", run: n.watchPlugins},
		{name: "image credential providers", run: n.watchProviders},
		{name: "resource managers", run: n.managers.Run},
		{name: "CSI drivers", run: n.storage.Run},
		{name: "local storage", run: func(ctx context.Context) error { return runLocalStorage(ctx, n.local) }},
		{name: "pod resources API", run: n.servePodResources},
		{name: "mirrors of static pods", run: n.static.RemoveOrphans},
		{name: "eviction", run: n.eviction.Run},
		{name: "shutdown", run: func(ctx context.Context) error { return n.shutdown.Run(outer, ctx, leave) }},
		{name: "image collection", run: n.images.Collect},
		{name: "healthz", run: func(ctx context.Context) error { return n.serveHealthz(ctx, health) }},
		{name: "node API", run: func(ctx context.Context) error { return n.serve(ctx, listener) }},
		{name: "read-only node API", run: func(ctx context.Context) error { return readOnlyPort{n}.serve(ctx, readOnly) }},
		// The parts above run without an API server; the next part begins when there is one. The parts stop in this order: the API server first,
		// which brings work, then the workers, then the caches that they use.
		{name: "API server", run: func(ctx context.Context) error { return n.join(ctx, following, group.Go) }, stop: following.stop},
		{name: "pod workers", run: n.workers.Run},
		{name: "object cache", stop: n.objects.Stop},
	}
	for _, p := range parts {
		if p.run != nil {
			group.Go(func() error { return p.run(ctx) })
		}
	}
	err = group.Wait()
	for _, p := range parts {
		if p.stop != nil {
			p.stop()
		}
	}
	return err
}

// buildParts makes the components, each from those before it.
func (n *node) buildParts(ctx context.Context, services corev1listers.ServiceLister) (err error) {
	n.workers = podworkers.New(podworkers.Config{
		Client: n.client, Node: n.reference(), Runtime: n.cri, RunConfig: n.config, Kubelet: n.Kubelet, Resources: n.resources,
		Addresses: n.Addresses,
		Backoff:   backoff.New(n.restartPeriod()), Probes: n.Metrics.probes, Starts: n.Metrics.starts, Clock: n.Clock, Logger: n.Logger,
	})
	n.objects = objectcache.New(n.client, n.NodeName, n.workers.WakeEach)
	n.volumes.Sources = n.objects
	n.volumes.Warn = func(pod *corev1.Pod, reason, message string) {
		n.recorder.Event(pod, corev1.EventTypeWarning, reason, message)
	}
	if err := openStorage(n); err != nil {
		return err
	}
	n.stats = podstats.NewProvider(podstats.ProviderConfig{
		Runtime: n.cri, Pods: n.workers, Volumes: n.volumes, Clock: n.Clock, Config: n.config, RootDir: n.Host.RootDir, CgroupFS: n.Host.CgroupFS,
		VolumePeriod: n.Kubelet.VolumeStatsAggPeriod.Duration,
	})
	meter := &eviction.Meter{
		Runtime: n.cri, Volumes: n.volumes, Resources: n.resources, Config: n.config, RootDir: n.Host.RootDir, Clock: n.Clock, Logger: n.Logger,
	}
	if n.Host.Measure == nil {
		n.Host.Measure = meter.Observe
	}
	provided, err := n.openProviders()
	if err != nil {
		return err
	}
	if n.images, err = images.New(ctx, images.Config{
		Runtime: n.cri, Secrets: n.objects, Providers: provided, Pods: n.workers, Measure: n.Host.Measure, Kubelet: n.Kubelet,
		RootDir: n.Host.RootDir,
		Node:    n.reference(), Events: n.recorder, Metrics: n.Metrics.images, Clock: n.Clock, Logger: n.Logger,
	}); err != nil {
		return err
	}
	if n.managers, err = n.resourceManagers(); err != nil {
		return err
	}
	n.nodeStatus = nodestatus.New(nodestatus.Config{
		Client: n.client, Runtime: n.cri, Addresses: n.Addresses, Images: n.images, Kubelet: n.Kubelet, Clock: n.Clock, Logger: n.Logger,
		NodeName: n.NodeName, Labels: n.Labels, TLS: n.Server.TLS, Port: n.port,
		Resources: n.resources, Plugins: n.managers, Record: n.devices.Record(),
		Volumes: attachedVolumes{n.storage.Attachments(), n.local}, Metrics: n.Metrics.startup,
		Cloud: nodestatus.Cloud{External: n.Host.Cloud.External, Given: n.Host.Cloud.Given, Outside: n.Host.Cloud.Outside},
		Network: cni.Options{
			Dir: n.CNI.ConfDir, BinDirs: n.CNI.BinDirs, DataDir: n.CNI.DataDir, Bridge: n.CNI.Bridge, MTU: n.CNI.MTU, Masquerade: !n.CNI.Masqueraded,
		},
		PodCIDR: n.CNI.PodCIDR,
	})
	if err := n.nodeStatus.InstallNetwork(); err != nil {
		return err
	}
	n.Addresses.Tell(n.addressesChanged)
	if n.Host.Cloud.Outside != nil {
		n.Host.Cloud.Outside.Tell(n.nodeStatus.Resync)
	}
	users, err := userns.NewManager(ctx, userns.Options{
		Dirs: n.volumes, Handlers: n.nodeStatus, Kubelet: n.Kubelet, RootDir: n.Host.RootDir, MaxPods: n.resources.MaxPods,
	})
	if err != nil {
		return err
	}
	bounds := cgroups.New(cgroups.Options{
		Pods: n.workers, Config: n.config, Resources: n.resources, Kubelet: n.Kubelet, Root: n.Host.CgroupFS,
		Metrics: n.Metrics.cgroups,
	})
	lifecycle := containerhooks.New(containerhooks.Config{Runtime: n.cri, Addresses: n.Addresses, Events: n.recorder, Clock: n.Clock})
	killer := podkiller.New(podkiller.Config{Runtime: n.cri, Hooks: lifecycle, Logs: n.config, Events: n.recorder, Clock: n.Clock})
	n.garbage = podgc.New(podgc.Config{
		Runtime: n.cri, Pods: n.workers, PodsDir: filepath.Join(n.volumes.Root, "pods"), LogDir: n.Host.LogDir, Clock: n.Clock, Logger: n.Logger,
	})
	n.streams = podstreams.New(podstreams.Config{
		Runtime: n.cri, Pods: n.workers, Logs: n.config, RootDir: n.Host.RootDir, Clock: n.Clock,
	})
	n.static = static.New(static.Config{
		Client: n.client, Definitions: n.workers, Workers: n.workers, Deleter: n.workers, Decode: n.DecodePods,
		NodeName: n.NodeName, Kubelet: n.Kubelet, Clock: n.Clock, Logger: n.Logger,
	})
	n.shutdown = shutdown.New(shutdown.Config{
		Pods: n.workers, Killer: n.workers, Status: n.nodeStatus, Kubelet: n.Kubelet, Clock: n.Clock, Logger: n.Logger,
		Metrics: n.Metrics.leaving,
	})
	n.eviction = eviction.New(eviction.Config{
		Pods: n.workers, Containers: n.garbage, Killer: n.workers, Images: n.images, Status: n.nodeStatus, Shutdown: n.shutdown,
		Meter: meter, Measure: n.Host.Measure, Kubelet: n.Kubelet, Thresholds: n.resources.Thresholds, Node: n.reference(), Events: n.recorder,
		Evictions: n.Metrics.evictions, Clock: n.Clock, Logger: n.Logger,
	})
	admission := podadmission.New(podadmission.Config{
		Pods: n.workers, Node: n.nodeStatus, Killer: n.workers, Shutdown: n.shutdown, Eviction: n.eviction, Sysctls: n.settings.sysctls,
		AppArmor: hardware.AppArmor(), Features: kubeletconfig.Features(n.Kubelet), Events: n.recorder, Metrics: n.Metrics.admission,
		Resources: measured{n.managers, n.exclusive.topology, n.Metrics.exclusive, n.Clock},
	})
	resizes := podresize.New(podresize.Config{
		Runtime: n.cri, Cgroups: bounds, Node: n.nodeStatus, Admission: admission, Limits: n.config, Kubelet: n.Kubelet, Events: n.recorder,
		Metrics: n.Metrics.resizes, Clock: n.Clock,
	})
	n.workers.Start(podworkers.Dependencies{
		Services: services, Events: n.recorder, References: n.objects, Objects: n.objects, Volumes: n.volumes, Mounts: n.volumes,
		Images: n.images, NodeStatus: n.nodeStatus, Mirrors: n.static, Static: n.static, Cgroups: bounds, Users: users,
		Lifecycle: lifecycle, Killer: killer, Deleter: killer, Admission: admission, Resizes: resizes, NodeResources: n.managers,
	})
	return nil
}

func eventScheme() *runtime.Scheme {
	s := runtime.NewScheme()
	if err := corev1.AddToScheme(s); err != nil {
		panic("the core types do not fit a scheme: " + err.Error())
	}
	return s
}

// recordEvents makes the event recorder, unless there is one. The function stop ends it.
func (n *node) recordEvents(ctx context.Context) (stop func(), err error) {
	if n.recorder = n.Recorder; n.recorder != nil {
		return func() {}, nil
	}
	client, err := n.eventClient()
	if err != nil {
		return nil, err
	}
	broadcaster := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))
	broadcaster.StartRecordingToSink(eventsink.New(context.WithoutCancel(ctx), client.CoreV1()))
	n.recorder = broadcaster.NewRecorder(eventScheme(), corev1.EventSource{Component: "kubelet", Host: n.NodeName})
	return broadcaster.Shutdown, nil
}

// serve serves the node's API, if there is one.
func (n *node) serve(ctx context.Context, listener net.Listener) error {
	if listener == nil {
		return nil
	}
	return n.Server.Serve(ctx, n.api(), listener)
}

// api returns the view of the node that its HTTP API has.
func (n *node) api() *api { return &api{n.streams, n.stats, n} }

// following are the informers of a node that has joined.
type following struct {
	services  informers.SharedInformerFactory
	factories []informers.SharedInformerFactory
}

func (f *following) stop() {
	for _, factory := range f.factories {
		factory.Shutdown()
	}
}

// join registers the node, starts the heartbeat, and watches the node's pods.
func (n *node) join(ctx context.Context, f *following, start func(func() error)) error {
	if err := n.nodeStatus.Register(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	if err := n.storage.Join(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	podInformer, factories, err := n.follow(ctx, f.services)
	f.factories = factories
	if err != nil {
		return err
	}
	start(func() error { return n.nodeStatus.Run(ctx) })
	if !cache.WaitForCacheSync(ctx.Done(), podInformer.HasSynced) {
		return nil
	}
	n.workers.SetSynced()
	n.claims.Synced()
	n.static.LookForOrphans()
	if n.Started != nil {
		n.Started(n.api())
	}
	return nil
}

// prepare reads the node's hardware and configuration, and makes its parts.
func (n *node) prepare(ctx context.Context) error {
	if err := hardware.Check(n.Kubelet); err != nil {
		return err
	}
	machine, err := hardware.Look(n.Host.RootDir)
	if err != nil {
		return err
	}
	if err := n.readSettings(machine); err != nil {
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
		LogDir: n.Host.LogDir, ClusterDNS: n.ClusterDNS, ClusterDomain: cmp.Or(n.Kubelet.ClusterDomain, "cluster.local"), CgroupDriver: driver,
		MemoryBytes: machine.Memory, LowestOOMScore: machine.LowestOOMScore,
		CgroupRoot: n.Kubelet.CgroupRoot, Flat: !*n.Kubelet.CgroupsPerQOS, SeccompDefault: *n.Kubelet.SeccompDefault,
		NoQuota: !*n.Kubelet.CPUCFSQuota, QuotaPeriod: n.Kubelet.CPUCFSQuotaPeriod.Duration,
	}
	n.config.Swap = runconfig.Swap{
		Bound: hardware.BoundsSwap(), Unified: hardware.Unified(), Bytes: machine.Swap,
		Limited: n.Kubelet.MemorySwap.SwapBehavior == "LimitedSwap" && hardware.Unified(),
	}
	// With its gate off, the factor is only kubelet's old default.
	if on, written := n.Kubelet.FeatureGates["MemoryQoS"]; n.Kubelet.MemoryThrottlingFactor != nil && hardware.Unified() && (on || !written) {
		memory := n.resources.Allocatable()[corev1.ResourceMemory]
		n.config.Throttle = runconfig.Throttle{Factor: *n.Kubelet.MemoryThrottlingFactor, Allocatable: memory.Value()}
	}
	if n.exclusive, err = n.makeExclusive(); err != nil {
		return err
	}
	n.config.Pinned = n.exclusive.pinned
	for _, p := range machine.HugePages {
		n.config.HugePages = append(n.config.HugePages, p.Size)
	}
	if text, err := os.ReadFile(*n.Kubelet.ResolverConfig); err == nil {
		n.config.HostServers, n.config.HostSearches, n.config.HostOptions = runconfig.ParseResolvConf(string(text))
	}
	n.volumes = volumes.NewManager(&volumes.Host{
		Root: n.Host.RootDir, Mounter: n.Host.Mounter, Clock: n.Clock, HostIPs: n.ips, Allocatable: n.resources.Allocatable(),
	}, n.Options.Volumes)
	for _, dir := range []string{filepath.Join(n.Host.RootDir, "pods"), n.Host.LogDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make node's directory: %w", err)
		}
	}
	return nil
}

// follow starts the informers: this node's pods, and all services for the environment.
func (n *node) follow(
	ctx context.Context, all informers.SharedInformerFactory,
) (cache.SharedIndexInformer, []informers.SharedInformerFactory, error) {
	mine := informers.NewSharedInformerFactoryWithOptions(n.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", n.NodeName).String()
	}))
	serviceInformer := all.Core().V1().Services().Informer()
	pods := mine.Core().V1().Pods().Informer()
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { n.workers.PodAdded(obj.(*corev1.Pod)) },
		UpdateFunc: func(old, obj any) { n.workers.PodUpdated(old.(*corev1.Pod), obj.(*corev1.Pod)) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				n.workers.PodDeleted(pod)
			}
		},
	})
	if err != nil {
		return nil, nil, fmt.Errorf("follow pods: %w", err)
	}
	factories := []informers.SharedInformerFactory{all, mine}
	own, err := n.nodeStatus.Informer()
	if err != nil {
		return nil, nil, err
	}
	factories = append(factories, own)
	own.Start(ctx.Done())
	all.Start(ctx.Done())
	// A pod's environment contains the services that existed before the pod: they sync first.
	if !cache.WaitForCacheSync(ctx.Done(), serviceInformer.HasSynced) {
		return pods, factories, nil
	}
	mine.Start(ctx.Done())
	return pods, factories, nil
}

// reference returns the node's reference, for events.
func (n *node) reference() *corev1.ObjectReference {
	return &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.NodeName, UID: types.UID(n.NodeName)}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package scheduler assigns pods to nodes. [Run] is the entry point: informers feed a cache of nodes and a queue of pods; one loop takes a
// pod, updates its snapshot, lets the core decide, assumes the decision, and binds the pod in the background while it decides on the next.
//
// Reading order: config (KubeSchedulerConfiguration), nodeinfo (the state of a node), profile (plug-ins by extension point), extender
// (extenders over HTTP), cache, devices (the state of claims' devices), core (the decision), queue, recorder (events, which are written
// after the bindings), plugins/<name>, and here profiles.go (from configuration to profiles), cycle.go (the scheduling and binding cycle),
// explain.go (the decision log), handlers.go and watch.go (informers' events).
package scheduler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/internal/scheduler/binder"
	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/config"
	"github.com/mortise-dev/mortise/internal/scheduler/core"
	"github.com/mortise-dev/mortise/internal/scheduler/decisionlog"
	"github.com/mortise-dev/mortise/internal/scheduler/devices"
	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/queue"
	"github.com/mortise-dev/mortise/internal/scheduler/recorder"
	"github.com/mortise-dev/mortise/internal/sharedobjects"
)

// Options are the scheduler's settings.
type Options struct {
	Config  *rest.Config     // how to reach the API server; required
	Plugins profile.Registry // in order; required
	// Foreign is set if there are plug-ins of third parties. Pods and nodes are then copies, so that the plug-ins cannot
	// affect others by changing them.
	Foreign bool
	// Name is the schedulerName of the pods that this scheduler handles; empty: default-scheduler.
	Name string
	// Configuration defines the profiles, each with its name and plug-ins; nil: one profile with all plug-ins.
	Configuration *config.Configuration
	// Ledger makes the calls to the configuration's extenders; nil: a private one. Configured is the source of the configuration, for the
	// ledger.
	Ledger     *extension.Ledger
	Configured string
	// ExtenderFailures and ExtenderPause configure the circuit breaker of an extender; 0: no breaker, and ten seconds.
	ExtenderFailures int
	ExtenderPause    time.Duration

	Logger *slog.Logger
	Clock  clock.WithDelayedExecution // nil: the real one
	Core   core.Options
	// Decisions records what the scheduler decides about each pod. Nil records nothing.
	Decisions *decisionlog.Log
	// Metrics measure; nil: nothing is measured.
	Metrics *metrics.Metrics
	// Bindings is the maximum number of concurrent bindings; 0: 64.
	Bindings int
}

// Run schedules until ctx is done. It returns nil then, and an error if it could not begin.
func Run(ctx context.Context, o Options) error {
	if o.Name == "" {
		o.Name = corev1.DefaultSchedulerName
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Bindings == 0 {
		o.Bindings = 64
	}
	if o.Ledger == nil {
		o.Ledger = extension.NewLedger(o.Clock)
	}
	client := rest.CopyConfig(o.Config)
	client.QPS = -1
	if o.Configuration != nil {
		o.connect(client)
		o.Core.Percentage = *o.Configuration.PercentageOfNodesToScore
	}
	own := rest.CopyConfig(client)
	// The content type holds for bindings too; plug-ins that use custom resources choose their own.
	own.ContentType = cmp.Or(own.ContentType, runtime.ContentTypeProtobuf)
	clientset, err := binder.NewForConfig(own, !o.Foreign)
	if err != nil {
		return fmt.Errorf("make scheduler client: %w", err)
	}
	return run(ctx, o, client, clientset)
}

// connect applies the configuration's clientConnection. The scheduler is part of the server, so that kube-scheduler's
// default rate limits would be of no use.
func (o *Options) connect(client *rest.Config) {
	w := o.Configuration.Written.ClientConnection
	if w.QPS != 0 {
		client.QPS, client.Burst = w.QPS, int(o.Configuration.ClientConnection.Burst)
	}
	if w.ContentType != "" {
		client.ContentType = w.ContentType
	}
	if w.AcceptContentTypes != "" {
		client.AcceptContentTypes = w.AcceptContentTypes
	}
}

// scheduler is the state of one Run.
type scheduler struct {
	options   Options
	logger    *slog.Logger
	client    kubernetes.Interface
	pods      corelisters.PodLister
	cache     *cache.Cache
	snapshot  *cache.Snapshot
	core      *core.Core
	queue     *queue.Queue
	devices   *devices.Manager
	profiles  map[string]*profile.Profile
	recorder  *recorder.Recorder
	reporters map[string]*recorder.Reporter // by profile name
	binding   chan struct{}                 // limits the concurrent bindings
	ahead     chan struct{}                 // limits the pods that are decided and not bound, except for those that wait
	cycles    *workers                      // run the binding cycles
	attempts  uint64                        // the number of attempts so far
}

func run(ctx context.Context, o Options, connection *rest.Config, client kubernetes.Interface) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	transform := sharedobjects.DropManagedFields
	if o.Foreign {
		transform = sharedobjects.DropAllManagedFields
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(transform))
	podInformer := factory.InformerFor(&corev1.Pod{}, livePods)
	queued := map[string]queue.Profile{}
	s := &scheduler{
		options: o, logger: o.Logger, client: client,
		pods:  corelisters.NewPodLister(podInformer.GetIndexer()),
		cache: cache.New(), snapshot: cache.NewSnapshot(), core: core.New(o.Core),
		queue:     queue.New(queued, o.queueOptions()),
		profiles:  map[string]*profile.Profile{},
		recorder:  recorder.New(binder.Events(client), recorder.Options{Clock: o.Clock, Logger: o.Logger}),
		reporters: map[string]*recorder.Reporter{},
		binding:   make(chan struct{}, o.Bindings), ahead: make(chan struct{}, 4*o.Bindings), cycles: newWorkers(),
	}
	defer s.queue.Close()
	manager, err := devices.New(ctx, factory)
	if err != nil {
		return err
	}
	defer manager.Stop()
	s.devices = manager
	defer s.closeProfiles()
	if err := s.makeProfiles(ctx, profile.Clients{
		Client: client, Config: connection, Informers: factory, Nominator: s.queue, Activator: s.queue, Lister: s.snapshot, Metrics: o.Metrics,
		Devices: manager,
	}); err != nil {
		return err
	}
	for name, p := range s.profiles {
		queued[name] = p
	}
	var recording sync.WaitGroup
	recording.Go(func() { s.recorder.Run(ctx) })
	defer func() {
		cancel()
		recording.Wait()
	}()
	nodeHandler, err := factory.Core().V1().Nodes().Informer().AddEventHandler(s.nodeHandler(ctx))
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	podHandler, err := podInformer.AddEventHandler(s.podHandler(ctx))
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	others, err := s.watchOthers(ctx, connection, factory)
	if err != nil {
		return err
	}
	defer func() {
		cancel()
		others.Shutdown()
	}()
	known, err := manager.Follow()
	if err != nil {
		return err
	}
	defer o.Decisions.Attach(s)()
	defer o.Metrics.Attach(measured{s.queue, s.cache})()
	factory.StartWithContext(ctx)
	defer func() {
		cancel()
		factory.Shutdown()
	}()
	if !toolscache.WaitFor(ctx, "", append(known, nodeHandler.HasSyncedChecker(), podHandler.HasSyncedChecker())...) {
		return nil // ctx is done
	}
	// Plug-ins may have requested informers of their own.
	if result := factory.WaitForCacheSyncWithContext(ctx); result.Err != nil && ctx.Err() == nil {
		return fmt.Errorf("fill scheduler caches: %w", result.Err)
	}
	for _, name := range slices.Sorted(maps.Keys(s.profiles)) {
		s.logger.Info("Scheduler is ready", "profile", s.profiles[name].String())
	}
	s.loop(ctx)
	s.cycles.Wait()
	return nil
}

// livePods returns an informer for pods that have not finished: finished pods use no resources.
func livePods(client kubernetes.Interface, resync time.Duration) toolscache.SharedIndexInformer {
	selector := "status.phase!=" + string(corev1.PodSucceeded) + ",status.phase!=" + string(corev1.PodFailed)
	indexers := toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc}
	return coreinformers.NewFilteredPodInformer(client, metav1.NamespaceAll, resync, indexers, func(o *metav1.ListOptions) {
		o.FieldSelector = selector
	})
}

func (s *scheduler) loop(ctx context.Context) {
	for {
		// A decision that cannot be written yet is better made later, with newer information.
		select {
		case s.ahead <- struct{}{}:
		case <-ctx.Done():
			return
		}
		item, err := s.queue.Pop(ctx)
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return
		}
		s.recorder.Throttle()
		if !s.schedule(ctx, item) {
			s.attemptDone()
		}
	}
}

// attemptDone ends an attempt's share of the limit s.ahead.
func (s *scheduler) attemptDone() {
	s.recorder.Unthrottle()
	<-s.ahead
}

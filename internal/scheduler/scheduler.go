// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package scheduler assigns pods to nodes. [Run] is the whole of it: informers feed a cache of nodes and a queue of pods;
// one loop takes a pod, brings its snapshot up to date, lets the core decide, assumes the decision, and binds in the
// background while it decides on the next.
//
// Reading order: nodeinfo (what is known of a node), profile (plug-ins by extension point), cache, core (the decision),
// queue, plugins/<name>, and here cycle.go (a pod's way) and handlers.go (what informers tell).
package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/scheduler/cache"
	"github.com/mortise-dev/mortise/internal/scheduler/core"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/internal/scheduler/queue"
)

// Options are the scheduler's settings.
type Options struct {
	Config  *rest.Config     // how to reach the API server; required
	Plugins profile.Registry // in their order; required
	// Name is the schedulerName of the pods that it schedules; empty: default-scheduler.
	Name   string
	Logger *slog.Logger
	Clock  clock.WithDelayedExecution // nil: the real one
	Core   core.Options
	// Bindings is how many may be under way at once; 0: 64.
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
	config := rest.CopyConfig(o.Config)
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make scheduler client: %w", err)
	}
	return run(ctx, o, config, client)
}

// scheduler is the state of one Run.
type scheduler struct {
	options  Options
	logger   *slog.Logger
	client   kubernetes.Interface
	recorder events.EventRecorderLogger
	pods     corelisters.PodLister
	cache    *cache.Cache
	snapshot *cache.Snapshot
	core     *core.Core
	queue    *queue.Queue
	profiles map[string]*profile.Profile
	binding  chan struct{} // as many as may bind at once
	cycles   sync.WaitGroup
}

func run(ctx context.Context, o Options, config *rest.Config, client kubernetes.Interface) error {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(withoutManagers))
	podInformer := factory.InformerFor(&corev1.Pod{}, livePods)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: client.EventsV1()})
	defer broadcaster.Shutdown()
	queued := map[string]queue.Profile{}
	s := &scheduler{
		options: o, logger: o.Logger, client: client,
		recorder: broadcaster.NewRecorder(scheme.Scheme, o.Name),
		pods:     corelisters.NewPodLister(podInformer.GetIndexer()),
		cache:    cache.New(), snapshot: cache.NewSnapshot(), core: core.New(o.Core),
		queue:    queue.New(queued, queue.Options{Clock: o.Clock, Logger: o.Logger}),
		profiles: map[string]*profile.Profile{}, binding: make(chan struct{}, o.Bindings),
	}
	defer s.queue.Close()
	p, err := profile.New(ctx, o.Name, o.Plugins, profile.Clients{
		Client: client, Config: config, Informers: factory, Recorder: s.recorder,
		Nominator: s.queue, Activator: s.queue, Lister: s.snapshot,
	})
	if err != nil {
		return err
	}
	s.profiles[o.Name], queued[o.Name] = p, p
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("begin recording events: %w", err)
	}
	nodeHandler, err := factory.Core().V1().Nodes().Informer().AddEventHandler(s.nodeHandler(ctx))
	if err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	podHandler, err := podInformer.AddEventHandler(s.podHandler(ctx))
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	if !toolscache.WaitFor(ctx, "", nodeHandler.HasSyncedChecker(), podHandler.HasSyncedChecker()) {
		return nil // ctx is done
	}
	// Plug-ins may have asked for informers of their own.
	if result := factory.WaitForCacheSyncWithContext(ctx); result.Err != nil && ctx.Err() == nil {
		return fmt.Errorf("fill scheduler caches: %w", result.Err)
	}
	s.logger.Info("scheduler ready", "profile", p.String())
	s.loop(ctx)
	s.cycles.Wait()
	return nil
}

// livePods leaves out pods that have ended: they use nothing up.
func livePods(client kubernetes.Interface, resync time.Duration) toolscache.SharedIndexInformer {
	selector := "status.phase!=" + string(corev1.PodSucceeded) + ",status.phase!=" + string(corev1.PodFailed)
	indexers := toolscache.Indexers{toolscache.NamespaceIndex: toolscache.MetaNamespaceIndexFunc}
	return coreinformers.NewFilteredPodInformer(client, metav1.NamespaceAll, resync, indexers, func(o *metav1.ListOptions) {
		o.FieldSelector = selector
	})
}

// withoutManagers drops what nobody here reads and is much of an object.
func withoutManagers(obj any) (any, error) {
	if o, ok := obj.(metav1.Object); ok {
		o.SetManagedFields(nil)
	}
	return obj, nil
}

func (s *scheduler) loop(ctx context.Context) {
	for {
		item, err := s.queue.Pop(ctx)
		if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
			return
		}
		s.schedule(ctx, item)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/metadata/metadatainformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/api/extension/v1alpha1"
	"github.com/mortise-dev/mortise/internal/eventsink"
	"github.com/mortise-dev/mortise/internal/sharedobjects"
)

// Options are the options of Run. With the zero value, Run starts all controllers on the real clock and logs nothing.
type Options struct {
	Selection []string // see Select
	Cluster   Cluster
	Clock     clock.WithTicker
	Logger    *slog.Logger
	Metrics   *Metrics
	Scaling   Scaling
	// Ready, if set, is called once, when every selected controller has built its first incarnation and filled its caches.
	Ready func()
	// Health takes each controller's latest result; nil: results are not reported. It is called from many goroutines.
	Health func(controller string, err error)
	// As returns the client configuration of a controller; nil: all controllers use the shared one. Informers are always shared.
	As func(c Controller) *rest.Config
	// Turn returns how long a key waits before it enters a queue, given the names of both; nil: keys do not wait. Simulations use it to
	// give each key a moment of its own.
	Turn func(what string) time.Duration
	// Retries counts the keys that come back soon after a failure; nil: nothing does.
	Retries *RetryCounter
	// Foreign is set if there are controllers of third parties. Pods, nodes and metadata are then copies, so that these cannot affect others
	// by changing them.
	Foreign bool
	// BackOff is the first pause before a failed controller starts again; it doubles up to 64 times that. 1 s when 0.
	BackOff time.Duration
}

// Run runs the selected controllers until ctx ends, on clients made from config, and returns when all have stopped. It returns an error if
// it cannot begin: the selection names an unknown controller, or config is not enough to create a client.
func Run(ctx context.Context, all []Controller, config *rest.Config, options Options) error {
	selected, err := Select(all, options.Selection)
	if err != nil {
		return err
	}
	deps, err := clients(config, &options)
	if err != nil {
		return err
	}
	if !options.Foreign {
		deps.Watcher = sharedobjects.Clientset(deps.Client)
	}
	return RunWith(ctx, selected, deps, options)
}

// clients makes the shared part of Deps. With initializers the metadata client also lists objects that still wait for them: the
// controllers that use it clean up, and must find everything.
func clients(config *rest.Config, options *Options) (*Deps, error) {
	config = rest.AddUserAgent(rest.CopyConfig(config), "controllers")
	if config.QPS == 0 && config.RateLimiter == nil {
		config.QPS = -1 // the server's flow control sets the limit
	}
	config.WarningHandler = rest.NoWarnings{} // controllers write deprecated fields on purpose
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	dyn, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make dynamic client: %w", err)
	}
	if options.Cluster.Initializers {
		config = rest.CopyConfig(config)
		config.Wrap(v1alpha1.SeeUninitialized)
	}
	var meta metadata.Interface
	if options.Foreign {
		meta, err = metadata.NewForConfig(config)
	} else {
		meta, err = sharedobjects.Metadata(config)
	}
	if err != nil {
		return nil, fmt.Errorf("make metadata client: %w", err)
	}
	return &Deps{Client: client, Dynamic: dyn, Metadata: meta, Discovery: client.Discovery()}, nil
}

// RunWith is Run with given clients and a resolved selection. The caller sets Client, Metadata and Discovery in shared, and Watcher if it
// shares the server's objects; RunWith fills in the rest.
func RunWith(ctx context.Context, selected []Controller, shared *Deps, options Options) error {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if options.BackOff == 0 {
		options.BackOff = time.Second
	}
	if options.Ready == nil {
		options.Ready = func() {}
	}
	if options.Health == nil {
		options.Health = func(string, error) {}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	d := *shared
	d.Clock, d.Cluster, d.Metrics, d.turn = options.Clock, options.Cluster, options.Metrics, options.Turn
	d.Scaling, d.retries = options.Scaling, options.Retries
	transform := sharedobjects.DropManagedFields
	if d.Watcher == nil {
		d.Watcher, transform = d.Client, sharedobjects.DropAllManagedFields
	}
	d.Informers = informers.NewSharedInformerFactoryWithOptions(d.Watcher, 0, informers.WithTransform(transform))
	d.MetadataInformers = metadatainformer.NewSharedInformerFactoryWithOptions(d.Metadata, 0,
		metadatainformer.WithTransform(sharedobjects.DropAllManagedFields))
	d.Typed = map[schema.GroupVersionResource]bool{}
	for _, c := range selected {
		for _, in := range c.Inputs {
			d.Typed[in] = true
		}
	}
	if d.RESTMapper == nil {
		d.RESTMapper = deferredMapper(d.Discovery)
	}
	d.scope = &scope{fail: func(err error) { options.Logger.Error("Could not reset the REST mapper", "error", err) }}
	if err := resetOnDefinitions(&d); err != nil {
		return err
	}
	d.start = func() {
		d.Informers.StartWithContext(ctx)
		d.MetadataInformers.Start(ctx.Done())
	}

	writing, stopWriting := context.WithCancel(context.WithoutCancel(ctx))
	defer stopWriting()
	recorded := &sinks{of: map[string]record.EventSink{}}
	own := make([]Deps, len(selected))
	for i, c := range selected {
		own[i] = d
		if err := own[i].become(c, options); err != nil {
			return err
		}
		recorded.of[source(c)] = eventsink.New(writing, own[i].Client.CoreV1())
	}
	// It ends after the controllers, which may record events while they end.
	events := record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx)))
	events.StartRecordingToSink(recorded)
	defer func() {
		recorded.ended.Store(true)
		events.Shutdown()
	}()

	var running, first sync.WaitGroup
	for i, c := range selected {
		own := own[i]
		own.Recorder = events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: source(c)})
		first.Add(1)
		running.Go(func() { supervise(ctx, c, own, options, sync.OnceFunc(first.Done)) })
	}
	running.Go(func() {
		first.Wait()
		if ctx.Err() == nil {
			options.Ready()
		}
	})
	<-ctx.Done()
	running.Wait()
	d.Informers.Shutdown()
	d.MetadataInformers.Shutdown()
	return nil
}

// source is the component name in a controller's events.
func source(c Controller) string { return cmp.Or(c.Component, c.Name) }

// become turns the shared Deps into those of controller c.
func (d *Deps) become(c Controller, options Options) error {
	d.Name, d.syncs = c.Name, c.Syncs
	d.Logger = options.Logger.With("controller", c.Name)
	if options.As == nil {
		return nil
	}
	mine, err := clients(options.As(c), &options)
	if err != nil {
		return fmt.Errorf("run %s: %w", c.Name, err)
	}
	d.Client, d.Dynamic, d.Metadata, d.Discovery = mine.Client, mine.Dynamic, mine.Metadata, mine.Discovery
	return nil
}

// sinks write events with the client of their source. After the end they drop them: the server may have stopped.
type sinks struct {
	of    map[string]record.EventSink // by the source's name
	ended atomic.Bool
}

// Create implements [record.EventSink].
func (s *sinks) Create(e *corev1.Event) (*corev1.Event, error) {
	if s.ended.Load() {
		return e, nil
	}
	return s.of[e.Source.Component].Create(e)
}

// Update implements [record.EventSink].
func (s *sinks) Update(e *corev1.Event) (*corev1.Event, error) {
	if s.ended.Load() {
		return e, nil
	}
	return s.of[e.Source.Component].Update(e)
}

// Patch implements [record.EventSink].
func (s *sinks) Patch(e *corev1.Event, data []byte) (*corev1.Event, error) {
	if s.ended.Load() {
		return e, nil
	}
	return s.of[e.Source.Component].Patch(e, data)
}

// supervise keeps one controller running.
func supervise(ctx context.Context, c Controller, d Deps, options Options, ready func()) {
	defer ready()
	pause := options.BackOff
	for {
		began := d.Clock.Now()
		err := incarnate(ctx, c, d, options, ready)
		if ctx.Err() != nil {
			return
		}
		d.Metrics.restarted(c.Name, errors.Is(err, errPanic))
		options.Health(c.Name, err)
		d.Logger.Error("Controller stopped, restarting it", "after", pause, "error", err)
		timer := d.Clock.NewTimer(pause)
		select {
		case <-timer.C():
		case <-ctx.Done():
			timer.Stop()
			return
		}
		if pause *= 2; d.Clock.Since(began) > 128*options.BackOff || pause > 64*options.BackOff {
			pause = min(pause, 64*options.BackOff)
			if d.Clock.Since(began) > 128*options.BackOff {
				pause = options.BackOff // it ran well for long; this failure is a new one
			}
		}
	}
}

// incarnate builds a controller and runs it until it ends.
func incarnate(ctx context.Context, c Controller, d Deps, options Options, ready func()) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.scope = &scope{fail: func(err error) { cancel(err) }}
	defer func() {
		if v := recover(); v != nil {
			err = panicError("run", v, debug.Stack())
		}
		err = errors.Join(err, d.scope.close())
	}()
	runner, err := c.New(&d)
	if err != nil {
		return fmt.Errorf("build controller: %w", err)
	}
	d.start()
	if !d.scope.synced(ctx) {
		return context.Cause(ctx)
	}
	d.Metrics.started(c.Name)
	defer d.Metrics.stopped(c.Name)
	options.Health(c.Name, nil)
	ready()
	if err := runner.Run(ctx); err != nil {
		return err
	}
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return errors.New("run: ended by itself")
}

// resetOnDefinitions resets the REST mapper when a CRD changes.
func resetOnDefinitions(d *Deps) error {
	definitions := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	informer := d.MetadataInformers.ForResource(definitions).Informer()
	return Subscribe(d, informer, OnAny(func(*metav1.PartialObjectMetadata) { d.RESTMapper.Reset() }))
}

func deferredMapper(client discovery.DiscoveryInterface) *restmapper.DeferredDiscoveryRESTMapper {
	return restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(client))
}

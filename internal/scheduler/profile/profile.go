// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package profile is the plug-ins of one scheduler name, sorted by extension point: [Profile] calls them in their order
// and is the [fwk.Handle] that they see. The interfaces are those of k8s.io/kube-scheduler/framework, so a plug-in written
// to that module alone compiles in.
//
// A [Registry] is the plug-ins in order, each with its weight as a scorer. [New] makes each once; a plug-in takes part in
// every extension point whose interface it has.
//
// Extension points, in the order of a pod's way: PreEnqueue and QueueSort (the queue asks), PreFilter, Filter, PostFilter,
// PreScore, Score with normalisation, Reserve, Permit, PreBind, Bind, PostBind. A plug-in whose PreFilter answers Skip is
// left out of Filter for this pod, PreScore's Skip likewise of Score, Bind's Skip passes on to the next binder.
package profile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/kube-scheduler/framework"
)

// Factory makes a plug-in. It is the factory function of upstream's registries.
type Factory = func(ctx context.Context, args runtime.Object, h framework.Handle) (framework.Plugin, error)

// Registration is one plug-in of a registry.
type Registration struct {
	Name   string
	New    Factory
	Weight int64          // of its scores; 0 counts as 1
	Args   runtime.Object // nil: the plug-in's defaults
}

// Registry is plug-ins in their order.
type Registry []Registration

// NodeLocal is a promise that a plug-in makes beside the framework's: what its Filter and Score say of a node follows from
// the pod's signature fragments and the NodeInfo alone. Verdicts of such plug-ins are kept, by the pod's signature and the
// node's generation, and not asked for again.
type NodeLocal interface {
	framework.SignPlugin
	NodeLocal()
}

// Clients are what plug-ins reach through their handle.
type Clients struct {
	Client    kubernetes.Interface
	Config    *rest.Config
	Informers informers.SharedInformerFactory
	Recorder  events.EventRecorderLogger
	Nominator framework.PodNominator
	Activator framework.PodActivator
	Lister    framework.SharedLister
}

// Profile is the plug-ins of one scheduler name. Its methods may be called concurrently.
type Profile struct {
	*handle

	name    string
	plugins []framework.Plugin

	preEnqueue []framework.PreEnqueuePlugin
	queueSort  framework.QueueSortPlugin
	preFilter  []framework.PreFilterPlugin
	filter     []framework.FilterPlugin
	localCount int // so many filters, from the first, are NodeLocal
	postFilter []framework.PostFilterPlugin
	preScore   []framework.PreScorePlugin
	score      []scorer
	reserve    []framework.ReservePlugin
	permit     []framework.PermitPlugin
	preBind    []framework.PreBindPlugin
	bind       []framework.BindPlugin
	postBind   []framework.PostBindPlugin
	sign       []framework.SignPlugin
	enqueue    map[string][]framework.ClusterEventWithHint
}

type scorer struct {
	framework.ScorePlugin
	weight int64
	local  bool
}

var _ framework.Handle = (*Profile)(nil)

// New makes the profile of a scheduler name.
func New(ctx context.Context, name string, registry Registry, clients Clients) (*Profile, error) {
	p := &Profile{name: name, enqueue: map[string][]framework.ClusterEventWithHint{}}
	p.handle = &handle{clients: clients, profile: p, waiting: newWaitingPods()}
	allLocal := true
	for _, r := range registry {
		plugin, err := r.New(ctx, r.Args, p)
		if err != nil {
			return nil, fmt.Errorf("make scheduler plug-in %s: %w", r.Name, err)
		}
		if plugin.Name() != r.Name {
			return nil, fmt.Errorf("scheduler plug-in %s calls itself %s", r.Name, plugin.Name())
		}
		if slices.ContainsFunc(p.plugins, func(x framework.Plugin) bool { return x.Name() == r.Name }) {
			return nil, fmt.Errorf("scheduler plug-in %s is there twice", r.Name)
		}
		weight := r.Weight
		if weight == 0 {
			weight = 1
		}
		if err := p.add(ctx, plugin, weight, &allLocal); err != nil {
			return nil, err
		}
	}
	if p.queueSort == nil {
		return nil, errors.New("no scheduler plug-in sorts the queue")
	}
	if len(p.bind) == 0 {
		return nil, errors.New("no scheduler plug-in binds")
	}
	return p, nil
}

func (p *Profile) add(ctx context.Context, plugin framework.Plugin, weight int64, allLocal *bool) error {
	p.plugins = append(p.plugins, plugin)
	_, local := plugin.(NodeLocal)
	if x, ok := plugin.(framework.PreEnqueuePlugin); ok {
		p.preEnqueue = append(p.preEnqueue, x)
	}
	if x, ok := plugin.(framework.QueueSortPlugin); ok {
		if p.queueSort != nil {
			return fmt.Errorf("scheduler plug-ins %s and %s both sort the queue", p.queueSort.Name(), x.Name())
		}
		p.queueSort = x
	}
	if x, ok := plugin.(framework.PreFilterPlugin); ok {
		p.preFilter = append(p.preFilter, x)
	}
	if x, ok := plugin.(framework.FilterPlugin); ok {
		p.filter = append(p.filter, x)
		if *allLocal = *allLocal && local; *allLocal {
			p.localCount++
		}
	}
	if x, ok := plugin.(framework.PostFilterPlugin); ok {
		p.postFilter = append(p.postFilter, x)
	}
	if x, ok := plugin.(framework.PreScorePlugin); ok {
		p.preScore = append(p.preScore, x)
	}
	if x, ok := plugin.(framework.ScorePlugin); ok {
		p.score = append(p.score, scorer{ScorePlugin: x, weight: weight, local: local})
	}
	if x, ok := plugin.(framework.ReservePlugin); ok {
		p.reserve = append(p.reserve, x)
	}
	if x, ok := plugin.(framework.PermitPlugin); ok {
		p.permit = append(p.permit, x)
	}
	if x, ok := plugin.(framework.PreBindPlugin); ok {
		p.preBind = append(p.preBind, x)
	}
	if x, ok := plugin.(framework.BindPlugin); ok {
		p.bind = append(p.bind, x)
	}
	if x, ok := plugin.(framework.PostBindPlugin); ok {
		p.postBind = append(p.postBind, x)
	}
	if x, ok := plugin.(framework.SignPlugin); ok && local {
		p.sign = append(p.sign, x)
	}
	return p.registerEvents(ctx, plugin)
}

// registerEvents notes what may make a pod schedulable that the plug-in rejected: all events, if it does not say.
func (p *Profile) registerEvents(ctx context.Context, plugin framework.Plugin) error {
	every := []framework.ClusterEventWithHint{{Event: framework.ClusterEvent{Resource: framework.WildCard, ActionType: framework.All}}}
	x, ok := plugin.(framework.EnqueueExtensions)
	if !ok {
		p.enqueue[plugin.Name()] = every
		return nil
	}
	events, err := x.EventsToRegister(ctx)
	if err != nil {
		return fmt.Errorf("ask scheduler plug-in %s for its events: %w", plugin.Name(), err)
	}
	p.enqueue[plugin.Name()] = events
	return nil
}

// Name is the scheduler name whose pods the profile schedules.
func (p *Profile) Name() string { return p.name }

// QueueSort is the plug-in that orders the queue.
func (p *Profile) QueueSort() framework.QueueSortPlugin { return p.queueSort }

// Events are, by plug-in, what may help pods that it rejected.
func (p *Profile) Events() map[string][]framework.ClusterEventWithHint { return p.enqueue }

// RunPreEnqueue returns the first plug-in's refusal, or nil.
func (p *Profile) RunPreEnqueue(ctx context.Context, pod *corev1.Pod) *framework.Status {
	for _, x := range p.preEnqueue {
		if s := x.PreEnqueue(ctx, pod); !s.IsSuccess() {
			return s.WithPlugin(x.Name())
		}
	}
	return nil
}

// SignPod is the pod's signature: the same for pods that all node-local plug-ins treat alike; nil if one does not sign it.
func (p *Profile) SignPod(ctx context.Context, pod *corev1.Pod) framework.PodSignature {
	parts := map[string]any{}
	for _, x := range p.sign {
		fragments, s := x.SignPod(ctx, pod)
		if !s.IsSuccess() {
			return nil
		}
		for _, f := range fragments {
			parts[f.Key] = f.Value
		}
	}
	// Map keys are encoded in order, so the encoding is canonical.
	data, err := json.Marshal(parts)
	if err != nil {
		return nil
	}
	return data
}

// String lists the plug-ins.
func (p *Profile) String() string {
	names := make([]string, len(p.plugins))
	for i, x := range p.plugins {
		names[i] = x.Name()
	}
	return p.name + ": " + strings.Join(names, ", ")
}

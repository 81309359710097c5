// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package profile is the plug-ins of one scheduler name, sorted by extension point: [Profile] calls them in their order
// and is the [fwk.Handle] that they see. The interfaces are those of k8s.io/kube-scheduler/framework, so a plug-in written
// to that module alone compiles in.
//
// A [Registry] is the plug-ins in order, each with its weight as a scorer. [New] makes each once; a plug-in takes part in
// every extension point whose interface it has. [Configure] makes those that a KubeSchedulerConfiguration names, at the
// points where it wants them (points.go).
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
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
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

// Fleeting is an ability of node-local plug-ins that score some pods by more than the node, such as devices: those scores are not kept.
type Fleeting interface {
	NodeLocal
	// Fleeting tells whether the pod is one of those. It is asked once a cycle, before the scores.
	Fleeting(state framework.CycleState, pod *corev1.Pod) bool
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
	Extenders []framework.Extender
	// Devices are the claims of devices, and what there is of them; nil: plug-ins know of none.
	Devices framework.SharedDRAManager
	// Metrics measure; nil: nothing is measured.
	Metrics *metrics.Metrics
	// Parallelism is the number of goroutines for a plug-in's parallel work; 0: 16.
	Parallelism int
	// Waiting are the pods on their way to a node, of all profiles that share them; nil: the profile's own.
	Waiting *Waiting
}

// Profile is the plug-ins of one scheduler name. Its methods may be called concurrently.
type Profile struct {
	*handle

	name       string
	percentage *int32
	meter      *metrics.Profile   // may be nil
	plugins    []framework.Plugin // each once, as they are first mentioned

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
	sign       []framework.SignPlugin // of the node-local plug-ins
	signAll    []framework.SignPlugin // of all that a decision asks; nil if one of them does not sign
	asked      asked
	enqueue    map[string][]framework.ClusterEventWithHint
}

// asked are the counters of plug-ins, as they stand in their lists.
type asked struct{ preFilter, filter, preScore []metrics.Asked }

type scorer struct {
	framework.ScorePlugin
	weight   int64
	local    bool
	fleeting Fleeting // nil: it is not
	asked    metrics.Asked
	scale    func(scores []int64) // how scores are normalised, where they alone matter
}

var _ framework.Handle = (*Profile)(nil)

// New makes the profile of a scheduler name: all plug-ins of the registry, each at every extension point that it has.
func New(ctx context.Context, name string, registry Registry, clients Clients) (*Profile, error) {
	s := Settings{Name: name, Plugins: &configv1.Plugins{}, Args: map[string]runtime.Object{}}
	for _, r := range registry {
		weight := int32(r.Weight)
		s.Plugins.MultiPoint.Enabled = append(s.Plugins.MultiPoint.Enabled, configv1.Plugin{Name: r.Name, Weight: &weight})
		if r.Args != nil {
			s.Args[r.Name] = r.Args
		}
	}
	return Configure(ctx, s, registry, clients)
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

// Signature is what the node-local plug-ins go by: the same for pods that all of them treat alike; nil if one does not sign it.
func (p *Profile) Signature(ctx context.Context, pod *corev1.Pod) framework.PodSignature {
	return signature(ctx, p.sign, pod, map[string]any{})
}

// SignPod is the pod's signature: the same for pods that the profile treats alike on the same nodes. It is nil where that is
// not known: extenders and plug-ins that sign nothing say nothing of it.
func (p *Profile) SignPod(ctx context.Context, pod *corev1.Pod) framework.PodSignature {
	if p.signAll == nil || len(p.clients.Extenders) > 0 {
		return nil
	}
	return signature(ctx, p.signAll, pod, map[string]any{framework.SchedulerNameSignerName: pod.Spec.SchedulerName})
}

func signature(ctx context.Context, signers []framework.SignPlugin, pod *corev1.Pod, parts map[string]any) framework.PodSignature {
	for _, x := range signers {
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

// Metrics are what measures the scheduler; nil: nothing does. Meter are the profile's own.
func (p *Profile) Metrics() *metrics.Metrics { return p.clients.Metrics }

// Meter are the profile's own metrics; nil: nothing is measured.
func (p *Profile) Meter() *metrics.Profile { return p.meter }

// Percentage is of how many nodes at least the search for feasible ones goes on; nil: as all profiles have it.
func (p *Profile) Percentage() *int32 { return p.percentage }

// Close closes the plug-ins that can be closed.
func (p *Profile) Close() error {
	var errs []error
	for _, x := range p.plugins {
		if c, ok := x.(io.Closer); ok {
			if err := c.Close(); err != nil {
				errs = append(errs, fmt.Errorf("close scheduler plug-in %s: %w", x.Name(), err))
			}
		}
	}
	return errors.Join(errs...)
}

// String lists the plug-ins.
func (p *Profile) String() string {
	names := make([]string, len(p.plugins))
	for i, x := range p.plugins {
		names[i] = x.Name()
	}
	return p.name + ": " + strings.Join(names, ", ")
}

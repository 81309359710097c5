// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package profile is the plug-ins of one scheduler name, sorted by extension point: [Profile] calls them in order and is their
// [fwk.Handle]. The interfaces are those of k8s.io/kube-scheduler/framework, so a plug-in that imports only that module compiles in.
//
// A [Registry] is the plug-ins in order, each with its weight as a scorer. [New] creates each once; a plug-in takes part in every extension
// point whose interface it implements. [Configure] creates those that a KubeSchedulerConfiguration names, at the points that it names
// (points.go).
//
// Extension points, in the order of scheduling: PreEnqueue and QueueSort (the queue calls them), PreFilter, Filter, PostFilter, PreScore,
// Score with normalisation, Reserve, Permit, PreBind, Bind, PostBind. A plug-in whose PreFilter returns Skip is left out of Filter for this
// pod, PreScore's Skip likewise of Score, Bind's Skip passes on to the next binder.
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

	"github.com/mortise-dev/mortise/extension/scheduler"
	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
)

// Factory creates a plug-in. It is the factory function of upstream's registries.
type Factory = scheduler.Factory

// Registration is one plug-in of a registry.
type Registration struct {
	Name   string
	New    Factory
	Weight int64          // of the plug-in's scores; 0 counts as 1
	Args   runtime.Object // nil: the plug-in's defaults
}

// Registry is a list of plug-ins in order.
type Registry []Registration

// NodeLocal is a promise that a plug-in makes beside the framework's: the results of its Filter and Score for a node depend on the pod's
// signature fragments and the NodeInfo alone. The core caches the verdicts of such plug-ins by the pod's signature and the node's
// generation.
type NodeLocal interface {
	framework.SignPlugin
	NodeLocal()
}

// Fleeting is implemented by node-local plug-ins whose scores of some pods depend on more than the node, such as devices: those scores are
// not cached.
type Fleeting interface {
	NodeLocal
	// Fleeting reports whether the pod is one of those. The profile calls it once a cycle, before scoring.
	Fleeting(state framework.CycleState, pod *corev1.Pod) bool
}

// Clients are the clients and caches that plug-ins reach through their handle.
type Clients struct {
	Client    kubernetes.Interface
	Config    *rest.Config
	Informers informers.SharedInformerFactory
	Recorder  events.EventRecorderLogger
	Nominator framework.PodNominator
	Activator framework.PodActivator
	Lister    framework.SharedLister
	Extenders []framework.Extender
	// Devices is the manager of ResourceClaims and devices; nil: plug-ins support none.
	Devices framework.SharedDRAManager
	// Metrics records metrics; nil: none.
	Metrics *metrics.Metrics
	// Parallelism is the number of goroutines for a plug-in's parallel work; 0: 16.
	Parallelism int
	// Waiting are the pods in their binding cycle, shared by profiles; nil: the profile has its own.
	Waiting *Waiting
}

// Profile is the plug-ins of one scheduler name. Its methods may be called concurrently.
type Profile struct {
	*handle

	name       string
	percentage *int32
	meter      *metrics.Profile   // may be nil
	plugins    []framework.Plugin // each once, in the order of first mention

	preEnqueue []framework.PreEnqueuePlugin
	queueSort  framework.QueueSortPlugin
	preFilter  []framework.PreFilterPlugin
	filter     []framework.FilterPlugin
	localCount int // the number of leading filters that are NodeLocal
	postFilter []framework.PostFilterPlugin
	preScore   []framework.PreScorePlugin
	score      []scorer
	reserve    []framework.ReservePlugin
	permit     []framework.PermitPlugin
	preBind    []framework.PreBindPlugin
	bind       []framework.BindPlugin
	postBind   []framework.PostBindPlugin
	sign       []framework.SignPlugin // of the node-local plug-ins
	signAll    []framework.SignPlugin // of all plug-ins that a decision calls; nil if one of them does not sign
	asked      asked
	enqueue    map[string][]framework.ClusterEventWithHint
}

// asked are the plug-ins' counters, in the order of their lists.
type asked struct{ preFilter, filter, preScore []metrics.Asked }

type scorer struct {
	framework.ScorePlugin
	weight   int64
	local    bool
	fleeting Fleeting // nil: the plug-in does not implement it
	asked    metrics.Asked
	scale    func(scores []int64) // how scores are normalised, if that depends on them alone
}

var _ framework.Handle = (*Profile)(nil)

// New returns the profile of a scheduler name: all plug-ins of the registry, each at every extension point that it implements.
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

// Name returns the scheduler name whose pods the profile schedules.
func (p *Profile) Name() string { return p.name }

// QueueSort returns the plug-in that sorts the queue.
func (p *Profile) QueueSort() framework.QueueSortPlugin { return p.queueSort }

// Events returns, by plug-in, the events that may help pods that it rejected.
func (p *Profile) Events() map[string][]framework.ClusterEventWithHint { return p.enqueue }

// RunPreEnqueue returns the first plug-in's rejection, or nil.
func (p *Profile) RunPreEnqueue(ctx context.Context, pod *corev1.Pod) *framework.Status {
	for _, x := range p.preEnqueue {
		if s := x.PreEnqueue(ctx, pod); !s.IsSuccess() {
			return s.WithPlugin(x.Name())
		}
	}
	return nil
}

// Signature returns the node-local plug-ins' signature of the pod: equal for pods that all of them treat alike; nil if one does not sign
// the pod.
func (p *Profile) Signature(ctx context.Context, pod *corev1.Pod) framework.PodSignature {
	return signature(ctx, p.sign, pod, map[string]any{})
}

// SignPod returns the pod's signature: equal for pods that the profile treats alike on the same nodes. It is nil if extenders, or plug-ins
// that do not sign, affect the pod.
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

// Metrics returns the scheduler's metrics; nil: none. Meter returns the profile's own.
func (p *Profile) Metrics() *metrics.Metrics { return p.clients.Metrics }

// Meter returns the profile's own metrics; nil: none.
func (p *Profile) Meter() *metrics.Profile { return p.meter }

// Percentage returns the profile's percentage of nodes to find feasible; nil: the scheduler's setting.
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

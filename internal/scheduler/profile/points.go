// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/metrics"
)

// Settings are a profile's settings in a KubeSchedulerConfiguration, merged with the default plug-ins.
type Settings struct {
	Name       string
	Percentage *int32
	Plugins    *configv1.Plugins
	Args       map[string]runtime.Object // by plug-in
}

// point is an extension point: the plug-ins that the settings name for it, and how to add one.
type point struct {
	kind string // the kind of plug-in, for messages
	set  configv1.PluginSet
	has  func(framework.Plugin) bool
	add  func(framework.Plugin)
}

func pointOf[T framework.Plugin](kind string, set configv1.PluginSet, to *[]T) point {
	return point{
		kind: kind, set: set,
		has: func(x framework.Plugin) bool { _, ok := x.(T); return ok },
		add: func(x framework.Plugin) {
			if t, ok := x.(T); ok {
				*to = append(*to, t)
			}
		},
	}
}

// byPoint holds the lists of points that a profile does not use unchanged. Pods are not scheduled in groups, so Configure checks the
// plug-ins at the groups' points, and the profile never calls them.
type byPoint struct {
	queueSort []framework.QueueSortPlugin
	score     []framework.ScorePlugin
	generate  []framework.PlacementGeneratePlugin
	placement []framework.PlacementScorePlugin
	group     []framework.PodGroupPostFilterPlugin
}

func (p *Profile) points(s *configv1.Plugins, b *byPoint) []point {
	return []point{
		pointOf("PreFilterPlugin", s.PreFilter, &p.preFilter),
		pointOf("FilterPlugin", s.Filter, &p.filter),
		pointOf("PostFilterPlugin", s.PostFilter, &p.postFilter),
		pointOf("ReservePlugin", s.Reserve, &p.reserve),
		pointOf("PreScorePlugin", s.PreScore, &p.preScore),
		pointOf("ScorePlugin", s.Score, &b.score),
		pointOf("PreBindPlugin", s.PreBind, &p.preBind),
		pointOf("BindPlugin", s.Bind, &p.bind),
		pointOf("PostBindPlugin", s.PostBind, &p.postBind),
		pointOf("PermitPlugin", s.Permit, &p.permit),
		pointOf("PreEnqueuePlugin", s.PreEnqueue, &p.preEnqueue),
		pointOf("QueueSortPlugin", s.QueueSort, &b.queueSort),
		pointOf("PlacementGeneratePlugin", s.PlacementGenerate, &b.generate),
		pointOf("PlacementScorePlugin", s.PlacementScore, &b.placement),
		pointOf("PodGroupPostFilterPlugin", s.PodGroupPostFilter, &b.group),
	}
}

// Configure returns the profile for the settings, with the registry's plug-ins. Errors are in kube-scheduler's words.
func Configure(ctx context.Context, s Settings, registry Registry, clients Clients) (*Profile, error) {
	if clients.Waiting == nil {
		clients.Waiting = NewWaiting()
	}
	p := &Profile{name: s.Name, percentage: s.Percentage, meter: clients.Metrics.Profile(s.Name),
		enqueue: map[string][]framework.ClusterEventWithHint{}}
	p.handle = &handle{clients: clients, profile: p}
	b := &byPoint{}
	points := p.points(s.Plugins, b)
	made, err := p.make(ctx, s, registry, points)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	for _, x := range points {
		if err := x.fill(s.Plugins.MultiPoint.Enabled, made); err != nil {
			return nil, errors.Join(err, p.Close())
		}
	}
	if err := p.finish(s, b, made); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

// make creates each plug-in once that is enabled anywhere.
func (p *Profile) make(ctx context.Context, s Settings, registry Registry, points []point) (map[string]framework.Plugin, error) {
	names := slices.Clone(s.Plugins.MultiPoint.Enabled)
	for _, x := range points {
		names = append(names, x.set.Enabled...)
	}
	made := map[string]framework.Plugin{}
	for _, n := range names {
		i := slices.IndexFunc(registry, func(r Registration) bool { return r.Name == n.Name })
		if i < 0 || made[n.Name] != nil {
			continue // fill will report that it does not exist
		}
		x, err := registry[i].New(ctx, s.Args[n.Name], p)
		if err != nil {
			return nil, fmt.Errorf("initializing plugin %q: %w", n.Name, err) // upstream's words
		}
		if x == nil {
			return nil, fmt.Errorf("initializing plugin %q: it is nil", n.Name)
		}
		made[n.Name] = x
		p.plugins = append(p.plugins, x)
		if err := p.registerEvents(ctx, x); err != nil {
			return nil, err
		}
	}
	if len(p.clients.Extenders) > 0 {
		p.enqueue[ExtenderName] = everyEvent() // extenders do not register events
	}
	return made, nil
}

// fill orders the plug-ins of one point: first those named both here and for all points, in the order here; then those named for all points
// only; then the others named here.
func (x *point) fill(all []configv1.Plugin, made map[string]framework.Plugin) error {
	here := sets.New[string]()
	for _, n := range x.set.Enabled {
		switch own := made[n.Name]; {
		case own == nil:
			return fmt.Errorf("%s %q does not exist", x.kind, n.Name) // upstream's words
		case !x.has(own):
			return fmt.Errorf("plugin %q does not extend %s plugin", n.Name, x.kind) // upstream's words
		case here.Has(n.Name):
			return fmt.Errorf("plugin %q already registered as %q", n.Name, x.kind) // upstream's words
		}
		here.Insert(n.Name)
	}
	off := sets.New[string]()
	for _, n := range x.set.Disabled {
		off.Insert(n.Name)
	}
	both, alone := sets.New[string](), []string(nil)
	if !off.Has("*") {
		for _, n := range all {
			switch own := made[n.Name]; {
			case own == nil:
				return fmt.Errorf("%s %q does not exist", x.kind, n.Name) // upstream's words
			case !x.has(own) || off.Has(n.Name):
			case here.Has(n.Name):
				both.Insert(n.Name)
			case slices.Contains(alone, n.Name):
				return fmt.Errorf("plugin %q already registered as %q", n.Name, x.kind) // upstream's words
			default:
				alone = append(alone, n.Name)
			}
		}
	}
	for _, n := range x.set.Enabled {
		if both.Has(n.Name) {
			x.add(made[n.Name])
		}
	}
	for _, name := range alone {
		x.add(made[name])
	}
	for _, n := range x.set.Enabled {
		if !both.Has(n.Name) {
			x.add(made[n.Name])
		}
	}
	return nil
}

// finish checks that the profile has all it needs, sets the scorers' weights and finds the plug-ins that sign.
func (p *Profile) finish(s Settings, b *byPoint, made map[string]framework.Plugin) error {
	if n := len(b.queueSort); n != 1 {
		return fmt.Errorf("only one queue sort plugin required for profile with scheduler name %q, but got %d", s.Name, n) // upstream's words
	}
	p.queueSort = b.queueSort[0]
	if len(p.bind) == 0 {
		return fmt.Errorf("at least one bind plugin is needed for profile with scheduler name %q", s.Name) // upstream's words
	}
	if len(b.generate) > 1 {
		return fmt.Errorf("at most one placement generate plugin is allowed for profile with scheduler name %q", s.Name) // upstream's words
	}
	weights, err := weigh[framework.ScorePlugin](slices.Concat(s.Plugins.Score.Enabled, s.Plugins.MultiPoint.Enabled), made)
	if err != nil {
		return fmt.Errorf("score plugins: %w", err)
	}
	for _, x := range b.score {
		_, local := x.(NodeLocal)
		w := weights[x.Name()]
		if w == 0 {
			return fmt.Errorf("score plugin %q is not configured with weight", x.Name()) // upstream's words
		}
		s := scorer{ScorePlugin: x, weight: w, local: local, asked: p.meter.Asked(x.Name(), metrics.Score)}
		s.fleeting, _ = x.(Fleeting)
		if e, ok := x.ScoreExtensions().(Scaler); ok {
			s.scale = e.Scale
		}
		p.score = append(p.score, s)
	}
	if weights, err = weigh[framework.PlacementScorePlugin](slices.Concat(s.Plugins.PlacementScore.Enabled, s.Plugins.MultiPoint.Enabled),
		made); err != nil {
		return fmt.Errorf("placement score plugins: %w", err)
	}
	for _, x := range b.placement {
		if weights[x.Name()] == 0 {
			return fmt.Errorf("placement score plugin %q is not configured with weight", x.Name()) // upstream's words
		}
	}
	p.seeWhoSigns(b)
	p.asked = asked{counters(p.meter, p.preFilter, metrics.PreFilter), counters(p.meter, p.filter, metrics.Filter),
		counters(p.meter, p.preScore, metrics.PreScore)}
	return nil
}

func counters[T framework.Plugin](m *metrics.Profile, plugins []T, at metrics.Point) []metrics.Asked {
	out := make([]metrics.Asked, len(plugins))
	for i, x := range plugins {
		out[i] = m.Asked(x.Name(), at)
	}
	return out
}

// weigh returns the weights of the plug-ins of one kind; the first mention counts, and 0 means 1.
func weigh[T framework.Plugin](named []configv1.Plugin, made map[string]framework.Plugin) (map[string]int64, error) {
	weights, total := map[string]int64{}, int64(0)
	for _, n := range named {
		if _, ok := made[n.Name].(T); !ok || weights[n.Name] != 0 {
			continue
		}
		w := int64(1)
		if n.Weight != nil && *n.Weight != 0 {
			w = int64(*n.Weight)
		}
		if w*framework.MaxScore > math.MaxInt64-total {
			return nil, errors.New("total score of Score plugins could overflow") // upstream's words
		}
		weights[n.Name], total = w, total+w*framework.MaxScore
	}
	return weights, nil
}

// seeWhoSigns finds the plug-ins whose signatures form that of a pod, and the number of leading filters that are node-local.
func (p *Profile) seeWhoSigns(b *byPoint) {
	for _, x := range p.filter {
		if _, local := x.(NodeLocal); !local {
			break
		}
		p.localCount++
	}
	var asked []framework.Plugin
	note := func(x framework.Plugin) {
		if !slices.ContainsFunc(asked, func(y framework.Plugin) bool { return y.Name() == x.Name() }) {
			asked = append(asked, x)
		}
	}
	for _, x := range p.preFilter {
		note(x)
	}
	for _, x := range p.filter {
		note(x)
	}
	for _, x := range p.preScore {
		note(x)
	}
	for _, x := range b.score {
		note(x)
	}
	everybody := true
	p.signAll = []framework.SignPlugin{}
	for _, x := range asked {
		signer, ok := x.(framework.SignPlugin)
		everybody = everybody && ok
		if !ok {
			continue
		}
		p.signAll = append(p.signAll, signer)
		if _, local := x.(NodeLocal); local {
			p.sign = append(p.sign, signer)
		}
	}
	if !everybody {
		p.signAll = nil
	}
}

// ExtenderName is the plug-in name under which pods count as rejected if extenders left no node.
const ExtenderName = "Extender"

func everyEvent() []framework.ClusterEventWithHint {
	return []framework.ClusterEventWithHint{{Event: framework.ClusterEvent{Resource: framework.WildCard, ActionType: framework.All}}}
}

// registerEvents records the events that may make a pod schedulable that the plug-in rejected: all events, if it registers none. Plug-ins
// that reject only when binding do not count.
func (p *Profile) registerEvents(ctx context.Context, plugin framework.Plugin) error {
	switch plugin.(type) {
	case framework.PreEnqueuePlugin, framework.PreFilterPlugin, framework.FilterPlugin, framework.ReservePlugin, framework.PermitPlugin:
	default:
		return nil
	}
	x, ok := plugin.(framework.EnqueueExtensions)
	if !ok {
		p.enqueue[plugin.Name()] = everyEvent()
		return nil
	}
	events, err := x.EventsToRegister(ctx)
	if err != nil {
		return fmt.Errorf("ask scheduler plug-in %s for its events: %w", plugin.Name(), err)
	}
	p.enqueue[plugin.Name()] = events
	return nil
}

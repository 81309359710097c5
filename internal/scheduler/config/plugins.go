// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"k8s.io/apimachinery/pkg/util/sets"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
)

// defaultPlugins returns the plug-ins that kube-scheduler 1.37 has in every profile, at all their extension points.
func defaultPlugins() []configv1.Plugin {
	return []configv1.Plugin{
		{Name: "SchedulingGates"},
		{Name: "PrioritySort"},
		{Name: "NodeName"},
		{Name: "NodeUnschedulable"},
		{Name: "TaintToleration", Weight: ptr.To[int32](3)},
		{Name: "NodeAffinity", Weight: ptr.To[int32](2)},
		{Name: "NodePorts"},
		{Name: "NodeResourcesFit", Weight: ptr.To[int32](1)},
		{Name: "VolumeRestrictions"},
		{Name: "NodeVolumeLimits"},
		{Name: "VolumeBinding"},
		{Name: "VolumeZone"},
		{Name: "PodTopologySpread", Weight: ptr.To[int32](2)},
		{Name: "InterPodAffinity", Weight: ptr.To[int32](2)},
		{Name: "DynamicResources", Weight: ptr.To[int32](2)},
		{Name: "DefaultPreemption"},
		{Name: "NodeResourcesBalancedAllocation", Weight: ptr.To[int32](1)},
		{Name: "ImageLocality", Weight: ptr.To[int32](1)},
		{Name: "DefaultBinder"},
		{Name: "NodeDeclaredFeatures"},
	}
}

// inTree returns the names of all plug-ins in kube-scheduler 1.37, including those that feature gates disable.
func inTree() sets.Set[string] {
	out := sets.New("DeferredPodScheduling", "GangScheduling", "PodGroupPodsCount", "TopologyPlacementGenerator")
	for _, p := range defaultPlugins() {
		out.Insert(p.Name)
	}
	return out
}

// points returns the sets of plug-ins by extension point; the set for all points comes first.
func points(p *configv1.Plugins) []*configv1.PluginSet {
	if p == nil {
		return nil
	}
	return []*configv1.PluginSet{
		&p.MultiPoint, &p.PreEnqueue, &p.QueueSort, &p.PreFilter, &p.Filter, &p.PostFilter, &p.PreScore, &p.Score, &p.Reserve,
		&p.Permit, &p.PreBind, &p.Bind, &p.PostBind, &p.PlacementGenerate, &p.PlacementScore, &p.PodGroupPostFilter,
	}
}

// enabled returns the names of all plug-ins that are enabled anywhere.
func enabled(p *configv1.Plugins) (names []string) {
	for _, set := range points(p) {
		for _, x := range set.Enabled {
			names = append(names, x.Name)
		}
	}
	return names
}

// Enabled returns the names of all plug-ins that the profile enables anywhere, each once.
func Enabled(p *configv1.KubeSchedulerProfile) []string {
	return sets.List(sets.New(enabled(p.Plugins)...))
}

// merge applies a profile's plug-ins to the default ones.
func merge(own *configv1.Plugins) *configv1.Plugins {
	out := &configv1.Plugins{MultiPoint: configv1.PluginSet{Enabled: defaultPlugins()}}
	if own == nil {
		return out
	}
	mine := points(own)
	for i, set := range points(out) {
		*set = mergeSet(set.Enabled, mine[i])
	}
	return out
}

// mergeSet merges a profile's plug-ins of one point into the default ones: it removes those that the profile disables, or all for "*"; a
// default plug-in that the profile also enables keeps its place and takes the profile's weight; the profile's others follow. A plug-in that
// is both disabled and enabled stays.
func mergeSet(defaults []configv1.Plugin, own *configv1.PluginSet) (out configv1.PluginSet) {
	off := sets.New[string]()
	for _, p := range own.Disabled {
		off.Insert(p.Name)
		out.Disabled = append(out.Disabled, configv1.Plugin{Name: p.Name})
	}
	again := map[string]int{} // the last mention counts
	for i, p := range own.Enabled {
		again[p.Name] = i
	}
	placed := sets.New[int]()
	if !off.Has("*") {
		for _, p := range defaults {
			if off.Has(p.Name) {
				continue
			}
			if i, ok := again[p.Name]; ok {
				p = own.Enabled[i]
				placed.Insert(i)
			}
			out.Enabled = append(out.Enabled, p)
		}
	}
	for i, p := range own.Enabled {
		if !placed.Has(i) {
			out.Enabled = append(out.Enabled, p)
		}
	}
	return out
}

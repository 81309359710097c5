// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"cmp"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	componentconfig "k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// orDefault sets an unset field.
func orDefault[T any](p **T, v T) {
	if *p == nil {
		*p = &v
	}
}

// setDefaults sets the defaults of kube-scheduler 1.37 with its default feature gates.
func setDefaults(c *configv1.KubeSchedulerConfiguration) {
	orDefault(&c.Parallelism, 16)
	if len(c.Profiles) == 0 {
		c.Profiles = []configv1.KubeSchedulerProfile{{}}
	}
	if len(c.Profiles) == 1 { // with several profiles, each must have its own name
		orDefault(&c.Profiles[0].SchedulerName, corev1.DefaultSchedulerName)
	}
	for i := range c.Profiles {
		setProfileDefaults(&c.Profiles[i])
	}
	orDefault(&c.PercentageOfNodesToScore, 0)
	e := &c.LeaderElection
	e.ResourceLock = cmp.Or(e.ResourceLock, "leases")
	e.ResourceNamespace = cmp.Or(e.ResourceNamespace, configv1.SchedulerDefaultLockObjectNamespace)
	e.ResourceName = cmp.Or(e.ResourceName, configv1.SchedulerDefaultLockObjectName)
	cc := &c.ClientConnection
	cc.ContentType = cmp.Or(cc.ContentType, "application/vnd.kubernetes.protobuf")
	cc.QPS, cc.Burst = cmp.Or(cc.QPS, 50), cmp.Or(cc.Burst, 100)
	componentconfig.RecommendedDefaultLeaderElectionConfiguration(e)
	orDefault(&c.PodInitialBackoffSeconds, 1)
	orDefault(&c.PodMaxBackoffSeconds, 10)
	orDefault(&c.EnableProfiling, true)
	if *c.EnableProfiling {
		orDefault(&c.EnableContentionProfiling, true)
	}
}

func setProfileDefaults(p *configv1.KubeSchedulerProfile) {
	p.Plugins = merge(p.Plugins)
	given := sets.New[string]()
	for i := range p.PluginConfig {
		given.Insert(p.PluginConfig[i].Name)
		setArgsDefaults(p.PluginConfig[i].Args.Object)
	}
	for _, name := range sets.List(sets.New(enabled(p.Plugins)...)) {
		if given.Has(name) {
			continue
		}
		if args := newArgs(name); args != nil {
			setArgsDefaults(args)
			args.GetObjectKind().SetGroupVersionKind(configv1.SchemeGroupVersion.WithKind(name + "Args"))
			p.PluginConfig = append(p.PluginConfig, configv1.PluginConfig{Name: name, Args: runtime.RawExtension{Object: args}})
		}
	}
}

// newArgs returns empty arguments for a plug-in that takes any.
func newArgs(plugin string) runtime.Object {
	switch plugin {
	case "DefaultPreemption":
		return &configv1.DefaultPreemptionArgs{}
	case "DynamicResources":
		return &configv1.DynamicResourcesArgs{}
	case "InterPodAffinity":
		return &configv1.InterPodAffinityArgs{}
	case "NodeAffinity":
		return &configv1.NodeAffinityArgs{}
	case "NodeResourcesBalancedAllocation":
		return &configv1.NodeResourcesBalancedAllocationArgs{}
	case "NodeResourcesFit":
		return &configv1.NodeResourcesFitArgs{}
	case "PodTopologySpread":
		return &configv1.PodTopologySpreadArgs{}
	case "VolumeBinding":
		return &configv1.VolumeBindingArgs{}
	}
	return nil
}

// setArgsDefaults sets the defaults in the arguments of kube-scheduler's plug-ins.
func setArgsDefaults(args runtime.Object) {
	switch a := args.(type) {
	case *configv1.DefaultPreemptionArgs:
		orDefault(&a.MinCandidateNodesPercentage, 10)
		orDefault(&a.MinCandidateNodesAbsolute, 100)
	case *configv1.DynamicResourcesArgs:
		orDefault(&a.FilterTimeout, metav1.Duration{Duration: configv1.DynamicResourcesFilterTimeoutDefault})
		orDefault(&a.BindingTimeout, metav1.Duration{Duration: configv1.DynamicResourcesBindingTimeoutDefault})
	case *configv1.InterPodAffinityArgs:
		orDefault(&a.HardPodAffinityWeight, 1)
	case *configv1.NodeResourcesBalancedAllocationArgs:
		a.Resources = weighed(a.Resources)
	case *configv1.NodeResourcesFitArgs:
		orDefault(&a.ScoringStrategy, configv1.ScoringStrategy{Type: configv1.LeastAllocated})
		a.ScoringStrategy.Resources = weighed(a.ScoringStrategy.Resources)
	case *configv1.PodTopologySpreadArgs:
		a.DefaultingType = cmp.Or(a.DefaultingType, configv1.SystemDefaulting)
	case *configv1.VolumeBindingArgs:
		orDefault(&a.BindTimeoutSeconds, 600)
		if len(a.Shape) == 0 {
			a.Shape = []configv1.UtilizationShapePoint{{Utilization: 0, Score: mostShapeScore}, {Utilization: 100, Score: 0}}
		}
	}
}

// weighed returns resources with a weight each; cpu and memory if none are given.
func weighed(given []configv1.ResourceSpec) []configv1.ResourceSpec {
	if len(given) == 0 {
		return []configv1.ResourceSpec{{Name: string(corev1.ResourceCPU), Weight: 1}, {Name: string(corev1.ResourceMemory), Weight: 1}}
	}
	for i := range given {
		given[i].Weight = cmp.Or(given[i].Weight, 1)
	}
	return given
}

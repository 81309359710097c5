// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// mostShapeScore is the highest score of a shape's point.
const mostShapeScore = 10

// validateArgs checks the arguments of a plug-in that kube-scheduler knows.
func validateArgs(c *configv1.PluginConfig, path *field.Path) []error {
	want := newArgs(c.Name)
	if want == nil {
		return nil
	}
	if reflect.TypeOf(want) != reflect.TypeOf(c.Args.Object) {
		return []error{field.Invalid(path, c.Args.Object, "has to match plugin args")} // upstream's words
	}
	return checkArgs(c.Args.Object, path)
}

// ArgsFor returns a plug-in's arguments in their type: the given ones, or the default ones.
func ArgsFor[T runtime.Object](plugin string, given runtime.Object) (args T, err error) {
	if given == nil {
		given = newArgs(plugin)
		setArgsDefaults(given)
	}
	args, ok := given.(T)
	if !ok {
		return args, fmt.Errorf("want args to be of type %sArgs, got %T", plugin, given) // upstream's words
	}
	if errs := checkArgs(args, nil); len(errs) > 0 {
		return args, utilerrors.NewAggregate(errs)
	}
	return args, nil
}

func checkArgs(args runtime.Object, path *field.Path) []error {
	switch a := args.(type) {
	case *configv1.DefaultPreemptionArgs:
		return checkPreemption(a, path)
	case *configv1.DynamicResourcesArgs:
		return checkDynamicResources(a, path)
	case *configv1.InterPodAffinityArgs:
		if n := value(a.HardPodAffinityWeight); n < 0 || n > 100 {
			return []error{field.Invalid(path.Child("hardPodAffinityWeight"), n, "not in valid range [0, 100]")} // upstream's words
		}
	case *configv1.NodeAffinityArgs:
		return checkNodeAffinity(a, path)
	case *configv1.NodeResourcesBalancedAllocationArgs:
		return checkBalanced(a, path)
	case *configv1.NodeResourcesFitArgs:
		return checkFit(a, path)
	case *configv1.PodTopologySpreadArgs:
		return checkSpread(a, path)
	case *configv1.VolumeBindingArgs:
		var errs []error
		if n := value(a.BindTimeoutSeconds); n < 0 {
			errs = append(errs, field.Invalid(path.Child("bindTimeoutSeconds"), n,
				"invalid BindTimeoutSeconds, should not be a negative value")) // upstream's words
		}
		return append(errs, checkShape(a.Shape, path.Child("shape"))...)
	}
	return nil
}

func checkPreemption(a *configv1.DefaultPreemptionArgs, path *field.Path) (errs []error) {
	percentage, absolute := value(a.MinCandidateNodesPercentage), value(a.MinCandidateNodesAbsolute)
	atPercentage, atAbsolute := path.Child("minCandidateNodesPercentage"), path.Child("minCandidateNodesAbsolute")
	if percentage < 0 || percentage > 100 {
		errs = append(errs, field.Invalid(atPercentage, percentage, "not in valid range [0, 100]")) // upstream's words
	}
	if absolute < 0 {
		errs = append(errs, field.Invalid(atAbsolute, absolute, "not in valid range [0, inf)")) // upstream's words
	}
	if percentage == 0 && absolute == 0 {
		errs = append(errs,
			field.Invalid(atPercentage, percentage, "cannot be zero at the same time as minCandidateNodesAbsolute"), // upstream's words
			field.Invalid(atAbsolute, absolute, "cannot be zero at the same time as minCandidateNodesPercentage"))   // upstream's words
	}
	return errs
}

func checkDynamicResources(a *configv1.DynamicResourcesArgs, path *field.Path) (errs []error) {
	if a.FilterTimeout != nil && a.FilterTimeout.Duration < 0 {
		errs = append(errs, field.Invalid(path.Child("filterTimeout"), a.FilterTimeout, "must be zero or positive")) // upstream's words
	}
	if a.BindingTimeout != nil && a.BindingTimeout.Duration < time.Second {
		errs = append(errs, field.Invalid(path.Child("bindingTimeout"), a.BindingTimeout, "must be at least 1 second")) // upstream's words
	}
	return errs
}

func checkNodeAffinity(a *configv1.NodeAffinityArgs, path *field.Path) (errs []error) {
	if a.AddedAffinity == nil {
		return nil
	}
	path = path.Child("addedAffinity")
	if s := a.AddedAffinity.RequiredDuringSchedulingIgnoredDuringExecution; s != nil {
		if _, err := nodeaffinity.NewNodeSelector(s, field.WithPath(path.Child("requiredDuringSchedulingIgnoredDuringExecution"))); err != nil {
			errs = append(errs, err)
		}
	}
	if terms := a.AddedAffinity.PreferredDuringSchedulingIgnoredDuringExecution; len(terms) > 0 {
		if _, err := nodeaffinity.NewPreferredSchedulingTerms(terms,
			field.WithPath(path.Child("preferredDuringSchedulingIgnoredDuringExecution"))); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

func checkBalanced(a *configv1.NodeResourcesBalancedAllocationArgs, path *field.Path) (errs []error) {
	seen := sets.New[string]()
	for i, r := range a.Resources {
		at := path.Child("resources").Index(i)
		if seen.Has(r.Name) {
			errs = append(errs, field.Duplicate(at.Child("name"), r.Name))
		}
		seen.Insert(r.Name)
		if r.Weight != 1 {
			errs = append(errs, field.Invalid(at.Child("weight"), r.Weight, "must be 1")) // upstream's words
		}
	}
	return errs
}

func checkFit(a *configv1.NodeResourcesFitArgs, path *field.Path) (errs []error) {
	add := func(list field.ErrorList) {
		for _, err := range list {
			errs = append(errs, err)
		}
	}
	for i, name := range a.IgnoredResources {
		add(metav1validation.ValidateLabelName(name, path.Child("ignoredResources").Index(i)))
	}
	for i, group := range a.IgnoredResourceGroups {
		at := path.Child("ignoredResourceGroups").Index(i)
		if strings.Contains(group, "/") {
			errs = append(errs, field.Invalid(at, group, "resource group name can't contain '/'")) // upstream's words
		}
		add(metav1validation.ValidateLabelName(group, at))
	}
	path = path.Child("scoringStrategy")
	s := a.ScoringStrategy
	if s == nil {
		return append(errs, field.Required(path, "ScoringStrategy field is required")) // upstream's words
	}
	known := []configv1.ScoringStrategyType{configv1.LeastAllocated, configv1.MostAllocated, configv1.RequestedToCapacityRatio}
	if !slices.Contains(known, s.Type) {
		errs = append(errs, field.NotSupported(path.Child("type"), s.Type, known))
	}
	for i, r := range s.Resources {
		if r.Weight <= 0 || r.Weight > 100 {
			errs = append(errs, field.Invalid(path.Child("resources").Index(i).Child("weight"), r.Weight,
				fmt.Sprintf("resource weight of %v not in valid range (0, 100]", r.Name))) // upstream's words
		}
	}
	ratio := path.Child("requestedToCapacityRatio")
	switch {
	case s.Type == configv1.RequestedToCapacityRatio && s.RequestedToCapacityRatio == nil:
		errs = append(errs, field.Required(ratio, "must be specified when type is RequestedToCapacityRatio")) // upstream's words
	case s.Type == configv1.RequestedToCapacityRatio:
		errs = append(errs, checkShape(s.RequestedToCapacityRatio.Shape, ratio.Child("shape"))...)
	case s.RequestedToCapacityRatio != nil:
		errs = append(errs, field.Forbidden(ratio, "must be nil when type is not RequestedToCapacityRatio")) // upstream's words
	}
	return errs
}

func checkShape(shape []configv1.UtilizationShapePoint, path *field.Path) (errs []error) {
	if len(shape) == 0 {
		return []error{field.Required(path, "at least one point must be specified")} // upstream's words
	}
	for i := 1; i < len(shape); i++ {
		if shape[i-1].Utilization >= shape[i].Utilization {
			errs = append(errs, field.Invalid(path.Index(i).Child("utilization"), shape[i].Utilization,
				"values must be sorted in increasing order")) // upstream's words
			break
		}
	}
	for i, p := range shape {
		if p.Utilization < 0 || p.Utilization > 100 {
			errs = append(errs, field.Invalid(path.Index(i).Child("utilization"), p.Utilization, "not in valid range [0, 100]")) // upstream's words
		}
		if p.Score < 0 || p.Score > mostShapeScore {
			errs = append(errs, field.Invalid(path.Index(i).Child("score"), p.Score,
				fmt.Sprintf("not in valid range [0, %d]", mostShapeScore))) // upstream's words
		}
	}
	return errs
}

func checkSpread(a *configv1.PodTopologySpreadArgs, path *field.Path) (errs []error) {
	kinds := []configv1.PodTopologySpreadConstraintsDefaulting{configv1.SystemDefaulting, configv1.ListDefaulting}
	switch at := path.Child("defaultingType"); {
	case !slices.Contains(kinds, a.DefaultingType):
		errs = append(errs, field.NotSupported(at, a.DefaultingType, kinds))
	case a.DefaultingType == configv1.SystemDefaulting && len(a.DefaultConstraints) > 0:
		errs = append(errs, field.Invalid(at, a.DefaultingType, "when .defaultConstraints are not empty")) // upstream's words
	}
	type pair struct {
		key  string
		when corev1.UnsatisfiableConstraintAction
	}
	seen := map[pair]bool{}
	for i, c := range a.DefaultConstraints {
		all := path.Child("defaultConstraints")
		at := all.Index(i)
		if c.MaxSkew <= 0 {
			errs = append(errs, field.Invalid(at.Child("maxSkew"), c.MaxSkew, "not in valid range (0, inf)")) // upstream's words
		}
		if c.TopologyKey == "" {
			errs = append(errs, field.Required(at.Child("topologyKey"), "can not be empty")) // upstream's words
		} else {
			for _, err := range metav1validation.ValidateLabelName(c.TopologyKey, at.Child("topologyKey")) {
				errs = append(errs, err)
			}
		}
		actions := []corev1.UnsatisfiableConstraintAction{corev1.DoNotSchedule, corev1.ScheduleAnyway}
		if c.WhenUnsatisfiable == "" {
			errs = append(errs, field.Required(at.Child("whenUnsatisfiable"), "can not be empty")) // upstream's words
		} else if !slices.Contains(actions, c.WhenUnsatisfiable) {
			errs = append(errs, field.NotSupported(at.Child("whenUnsatisfiable"), c.WhenUnsatisfiable, actions))
		}
		if c.LabelSelector != nil {
			errs = append(errs, field.Forbidden(at.Child("labelSelector"),
				"constraint must not define a selector, as they deduced for each pod")) // upstream's words
		}
		p := pair{c.TopologyKey, c.WhenUnsatisfiable}
		if seen[p] {
			errs = append(errs, field.Duplicate(at, fmt.Sprintf("{%v, %v}", p.key, p.when)))
		}
		seen[p] = true
	}
	return errs
}

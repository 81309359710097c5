// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
	"k8s.io/utils/ptr"
)

func value[T any](p *T) T { return ptr.Deref(p, *new(T)) }

// validate reports all mistakes in a defaulted configuration, in kube-scheduler's words.
func validate(c *configv1.KubeSchedulerConfiguration) error {
	errs := validateConnection(c)
	if n := value(c.Parallelism); n <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("parallelism"), n, "should be an integer value greater than zero")) // upstream's words
	}
	profiles := field.NewPath("profiles")
	seen := map[string]int{}
	for i := range c.Profiles {
		p, path := &c.Profiles[i], profiles.Index(i)
		errs = append(errs, validateProfile(p, c.APIVersion, path)...)
		if first, ok := seen[Name(p)]; ok {
			errs = append(errs, field.Duplicate(path.Child("schedulerName"), profiles.Index(first).Child("schedulerName")))
		}
		seen[Name(p)] = i
	}
	errs = append(errs, validateQueueSort(c.Profiles, profiles)...)
	errs = append(errs, validatePercentage(c.PercentageOfNodesToScore, field.NewPath("percentageOfNodesToScore"))...)
	initial, most := value(c.PodInitialBackoffSeconds), value(c.PodMaxBackoffSeconds)
	if initial <= 0 {
		errs = append(errs, field.Invalid(field.NewPath("podInitialBackoffSeconds"), initial, "must be greater than 0")) // upstream's words
	}
	if most < initial {
		errs = append(errs, field.Invalid(field.NewPath("podMaxBackoffSeconds"), most,
			"must be greater than or equal to PodInitialBackoffSeconds")) // upstream's words
	}
	errs = append(errs, validateExtenders(c.Extenders, field.NewPath("extenders"))...)
	if all := utilerrors.Flatten(utilerrors.NewAggregate(errs)); all != nil {
		return all
	}
	return nil
}

func validateConnection(c *configv1.KubeSchedulerConfiguration) (errs []error) {
	if n := c.ClientConnection.Burst; n < 0 {
		errs = append(errs, field.Invalid(field.NewPath("clientConnection", "burst"), n, "must be non-negative")) // upstream's words
	}
	e, path := &c.LeaderElection, field.NewPath("leaderElection")
	if !isTrue(e.LeaderElect) {
		return errs
	}
	if e.LeaseDuration.Duration <= 0 {
		errs = append(errs, field.Invalid(path.Child("leaseDuration"), e.LeaseDuration, "must be greater than zero")) // upstream's words
	}
	if e.RenewDeadline.Duration <= 0 {
		errs = append(errs, field.Invalid(path.Child("renewDeadline"), e.RenewDeadline, "must be greater than zero")) // upstream's words
	}
	if e.RetryPeriod.Duration <= 0 {
		errs = append(errs, field.Invalid(path.Child("retryPeriod"), e.RetryPeriod, "must be greater than zero")) // upstream's words
	}
	if e.LeaseDuration.Duration <= e.RenewDeadline.Duration {
		errs = append(errs, field.Invalid(path.Child("leaseDuration"), e.RenewDeadline,
			"must be greater than `RenewDeadline`")) // upstream's words
	}
	if e.ResourceLock != "leases" {
		errs = append(errs, field.Invalid(path.Child("resourceLock"), e.ResourceLock, `resourceLock value must be "leases"`)) // upstream's words
	}
	return errs
}

func validatePercentage(n *int32, path *field.Path) []error {
	if n != nil && (*n < 0 || *n > 100) {
		return []error{field.Invalid(path, *n, "not in valid range [0-100]")} // upstream's words
	}
	return nil
}

// gone reports whether a plug-in was removed, and in which version.
func gone(plugin string) (since string, is bool) {
	switch plugin {
	case "AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits":
		return corev1.SchemeGroupVersion.String(), true
	}
	return "", false
}

func validateProfile(p *configv1.KubeSchedulerProfile, version string, path *field.Path) (errs []error) {
	if Name(p) == "" {
		errs = append(errs, field.Required(path.Child("schedulerName"), ""))
	}
	errs = append(errs, validatePercentage(p.PercentageOfNodesToScore, path.Child("percentageOfNodesToScore"))...)
	refuse := func(path *field.Path, plugin string) bool {
		since, is := gone(plugin)
		if is {
			errs = append(errs, field.Invalid(path, plugin,
				fmt.Sprintf("was invalid in version %q (KubeSchedulerConfiguration is version %q)", since, version))) // upstream's words
		}
		return is
	}
	names := []string{
		"multiPoint", "preEnqueue", "queueSort", "preFilter", "filter", "postFilter", "preScore", "score", "reserve",
		"permit", "preBind", "bind", "postBind", "placementGenerate", "placementScore", "podGroupPostFilter",
	}
	for i, set := range points(p.Plugins) {
		for j, x := range set.Enabled {
			refuse(path.Child("plugins", names[i], "enabled").Index(j), x.Name)
		}
	}
	seen := sets.New[string]()
	for i := range p.PluginConfig {
		c, path := &p.PluginConfig[i], path.Child("pluginConfig").Index(i)
		if seen.Has(c.Name) {
			errs = append(errs, field.Duplicate(path, c.Name))
		}
		seen.Insert(c.Name)
		if !refuse(path, c.Name) {
			errs = append(errs, validateArgs(c, path.Child("args"))...)
		}
	}
	return errs
}

// pluginSet is a set as kube-scheduler's message prints it.
type pluginSet struct{ Enabled, Disabled []plugin }

type plugin struct {
	Name   string
	Weight int32
}

func shown(s configv1.PluginSet) (out pluginSet) {
	for _, p := range s.Enabled {
		out.Enabled = append(out.Enabled, plugin{p.Name, value(p.Weight)})
	}
	for _, p := range s.Disabled {
		out.Disabled = append(out.Disabled, plugin{p.Name, value(p.Weight)})
	}
	return out
}

// validateQueueSort requires that all profiles sort the queue alike: there is one queue.
func validateQueueSort(profiles []configv1.KubeSchedulerProfile, path *field.Path) (errs []error) {
	first := shown(profiles[0].Plugins.QueueSort)
	sorter := ""
	if n := len(first.Enabled); n > 0 {
		sorter = first.Enabled[0].Name
		if n > 1 {
			errs = append(errs, field.Invalid(path.Index(0).Child("plugins", "queueSort", "Enabled"), n,
				"only one queue sort plugin can be enabled")) // upstream's words
		}
	}
	var args runtime.Object
	if sorter != "" {
		args = Args(&profiles[0])[sorter]
	}
	for i := 1; i < len(profiles); i++ {
		if own := shown(profiles[i].Plugins.QueueSort); !equality.Semantic.DeepEqual(first, own) {
			errs = append(errs, field.Invalid(path.Index(i).Child("plugins", "queueSort"), own,
				"must be the same for all profiles")) // upstream's words
		}
		for _, c := range profiles[i].PluginConfig {
			if sorter != "" && c.Name == sorter && !equality.Semantic.DeepEqual(args, c.Args.Object) {
				errs = append(errs, field.Invalid(path.Index(i).Child("pluginConfig", "args"), c.Args.Object,
					"queueSort must be the same for all profiles")) // upstream's words
			}
		}
	}
	return errs
}

func validateExtenders(extenders []configv1.Extender, path *field.Path) (errs []error) {
	binders, managed := 0, sets.New[string]()
	for i, e := range extenders {
		at := path.Index(i)
		if e.PrioritizeVerb != "" && e.Weight <= 0 {
			errs = append(errs, field.Invalid(at.Child("weight"), e.Weight, "must have a positive weight applied to it")) // upstream's words
		}
		if e.BindVerb != "" {
			binders++
		}
		for j, r := range e.ManagedResources {
			name := at.Child("managedResources").Index(j).Child("name")
			errs = append(errs, validateExtendedResource(r.Name, name)...)
			if managed.Has(r.Name) {
				errs = append(errs, field.Invalid(name, r.Name, "duplicate extender managed resource name")) // upstream's words
			}
			managed.Insert(r.Name)
		}
	}
	if binders > 1 {
		errs = append(errs, field.Invalid(path, fmt.Sprintf("found %d extenders implementing bind", binders),
			"only one extender can implement bind")) // upstream's words
	}
	return errs
}

func validateExtendedResource(name string, path *field.Path) (errs []error) {
	for _, why := range validation.IsQualifiedName(name) {
		errs = append(errs, field.Invalid(path, name, why))
	}
	if len(errs) > 0 {
		return errs
	}
	native := !strings.Contains(name, "/") || strings.Contains(name, corev1.ResourceDefaultNamespacePrefix)
	if native || strings.HasPrefix(name, corev1.DefaultResourceRequestsPrefix) ||
		len(validation.IsQualifiedName(corev1.DefaultResourceRequestsPrefix+name)) > 0 {
		errs = append(errs, field.Invalid(path, name, "is an invalid extended resource name")) // upstream's words
	}
	return errs
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package config reads KubeSchedulerConfiguration files of kubescheduler.config.k8s.io/v1 as kube-scheduler does.
//
// [Parse] decodes strictly (unknown and duplicate fields are errors), sets the defaults of kube-scheduler 1.37
// (defaults.go), merges each profile's plug-ins into the default ones (plugins.go), and validates everything
// (validation.go, args.go): one error has all mistakes, under their fields. It decodes the arguments of kube-scheduler's
// plug-ins into their types; those of others stay a [runtime.Unknown].
//
// A [Configuration] is not changed after it was parsed.
package config

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/sets"
	componentconfig "k8s.io/component-base/config/v1alpha1"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// Configuration is a file's contents with all defaults.
type Configuration struct {
	configv1.KubeSchedulerConfiguration
	// Written holds what the file itself sets, for two fields where it matters whether the file sets them.
	Written struct {
		LeaderElection   componentconfig.LeaderElectionConfiguration
		ClientConnection componentconfig.ClientConnectionConfiguration
	}

	named    []sets.Set[string] // by profile: the plug-ins that the file enables or gives arguments to
	profiled bool               // the file enables profiling
}

// Default is the configuration of an empty file.
func Default() *Configuration {
	c := &Configuration{named: []sets.Set[string]{nil}}
	setDefaults(&c.KubeSchedulerConfiguration)
	return c
}

// Parse reads a file's contents, YAML or JSON.
func Parse(data []byte) (*Configuration, error) {
	s := runtime.NewScheme()
	if err := configv1.AddToScheme(s); err != nil {
		return nil, fmt.Errorf("make scheme: %w", err)
	}
	decoder := serializer.NewCodecFactory(s, serializer.EnableStrict).UniversalDeserializer()
	obj, gvk, err := decoder.Decode(data, nil, nil)
	strict, isStrict := runtime.AsStrictDecodingError(err)
	if err != nil && (!isStrict || obj == nil) {
		return nil, err
	}
	file, ok := obj.(*configv1.KubeSchedulerConfiguration)
	if !ok {
		if err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("couldn't decode as KubeSchedulerConfiguration, got %s: ", gvk) // upstream's words
	}
	var mistakes []error
	if isStrict {
		mistakes = append(mistakes, strict.Errors()...)
	}
	if err := file.DecodeNestedObjects(runtime.WithoutVersionDecoder{Decoder: decoder}); err != nil {
		nested, ok := runtime.AsStrictDecodingError(err)
		if !ok {
			return nil, err
		}
		mistakes = append(mistakes, nested.Errors()...)
	}
	if len(mistakes) > 0 {
		return nil, runtime.NewStrictDecodingError(mistakes)
	}
	c := &Configuration{KubeSchedulerConfiguration: *file}
	c.Written.LeaderElection, c.Written.ClientConnection = file.LeaderElection, file.ClientConnection
	c.profiled = isTrue(file.EnableProfiling) || isTrue(file.EnableContentionProfiling)
	c.named = make([]sets.Set[string], max(1, len(file.Profiles)))
	for i := range file.Profiles {
		c.named[i] = sets.New(enabled(file.Profiles[i].Plugins)...)
		for _, p := range file.Profiles[i].PluginConfig {
			c.named[i].Insert(p.Name)
		}
	}
	keepUnknownArgs(&c.KubeSchedulerConfiguration)
	setDefaults(&c.KubeSchedulerConfiguration)
	if err := validate(&c.KubeSchedulerConfiguration); err != nil {
		return nil, err
	}
	return c, nil
}

func isTrue(b *bool) bool { return b != nil && *b }

// keepUnknownArgs keeps the arguments of plug-ins that kube-scheduler does not know as the file writes them.
func keepUnknownArgs(c *configv1.KubeSchedulerConfiguration) {
	for i := range c.Profiles {
		for j := range c.Profiles[i].PluginConfig {
			if a := &c.Profiles[i].PluginConfig[j].Args; a.Object == nil && len(a.Raw) > 0 {
				a.Object = &runtime.Unknown{Raw: slices.Clone(a.Raw), ContentType: runtime.ContentTypeJSON}
			}
		}
	}
}

// Args returns a profile's arguments by plug-in.
func Args(p *configv1.KubeSchedulerProfile) map[string]runtime.Object {
	out := make(map[string]runtime.Object, len(p.PluginConfig))
	for i := range p.PluginConfig {
		if a := p.PluginConfig[i].Args.Object; a != nil {
			out[p.PluginConfig[i].Name] = a
		}
	}
	return out
}

// Name returns a profile's scheduler name.
func Name(p *configv1.KubeSchedulerProfile) string {
	if p.SchedulerName == nil {
		return ""
	}
	return *p.SchedulerName
}

// Without removes from all profiles the plug-ins that kube-scheduler has and this scheduler does not. It returns a warning for each that
// the file names.
func (c *Configuration) Without(has func(name string) bool) (warnings []string) {
	for i := range c.Profiles {
		p := &c.Profiles[i]
		for _, set := range points(p.Plugins) {
			set.Enabled = slices.DeleteFunc(slices.Clone(set.Enabled), func(x configv1.Plugin) bool { return inTree().Has(x.Name) && !has(x.Name) })
		}
		for _, name := range sets.List(c.named[i]) {
			if inTree().Has(name) && !has(name) {
				warnings = append(warnings, fmt.Sprintf("profile %s: plug-in %s is not built in, so it is left out", Name(p), name))
			}
		}
	}
	return warnings
}

// Unheeded returns warnings for settings in the file that have no effect in a scheduler that is part of the server.
func (c *Configuration) Unheeded() (warnings []string) {
	w := c.Written
	if w.ClientConnection.Kubeconfig != "" {
		warnings = append(warnings, "clientConnection.kubeconfig has no effect: the scheduler is part of this server and schedules its pods alone")
	}
	if c.profiled {
		warnings = append(warnings, "enableProfiling and enableContentionProfiling have no effect: the scheduler has no port of its own")
	}
	return warnings
}

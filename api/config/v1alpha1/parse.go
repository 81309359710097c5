// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"
)

// MostNodes is how many simulated nodes a file may ask for.
const MostNodes = 100_000

// ParseSimulatedNodes reads and checks a file.
func ParseSimulatedNodes(data []byte) (*SimulatedNodes, error) {
	js, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, err
	}
	var t metav1.TypeMeta
	if err := json.Unmarshal(js, &t); err != nil {
		return nil, err
	}
	if t.APIVersion != Group+"/"+Version || t.Kind != SimulatedNodesKind {
		return nil, fmt.Errorf("it is of apiVersion %q and kind %q: want %s and %s", t.APIVersion, t.Kind, Group+"/"+Version, SimulatedNodesKind)
	}
	var c SimulatedNodes
	d := json.NewDecoder(bytes.NewReader(js))
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is more than one object")
	}
	if errs := c.check(); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	return &c, nil
}

func (c *SimulatedNodes) check() (errs field.ErrorList) {
	groups := field.NewPath("groups")
	if len(c.Groups) == 0 {
		errs = append(errs, field.Required(groups, ""))
	}
	total := int64(0)
	names := map[string]bool{}
	for i := range c.Groups {
		g, at := &c.Groups[i], groups.Index(i)
		count := int32(1)
		if g.Count != nil {
			count = *g.Count
		}
		if count < 1 {
			errs = append(errs, field.Invalid(at.Child("count"), count, "want 1 or more"))
		} else {
			total += int64(count)
		}
		for _, why := range validation.IsDNS1123Subdomain(fmt.Sprintf("%s-%d", g.NamePrefix, max(count, 1)-1)) {
			errs = append(errs, field.Invalid(at.Child("namePrefix"), g.NamePrefix, why))
		}
		if names[g.NamePrefix] {
			errs = append(errs, field.Duplicate(at.Child("namePrefix"), g.NamePrefix))
		}
		names[g.NamePrefix] = true
		errs = append(errs, g.check(at)...)
	}
	if total > MostNodes {
		errs = append(errs, field.Invalid(groups, total, fmt.Sprintf("want %d nodes at most", MostNodes)))
	}
	return append(errs, c.Pods.check(field.NewPath("pods"))...)
}

func (g *NodeGroup) check(at *field.Path) (errs field.ErrorList) {
	for what, list := range map[string]corev1.ResourceList{"capacity": g.Capacity, "allocatable": g.Allocatable} {
		for _, name := range slices.Sorted(maps.Keys(list)) {
			q := list[name]
			here := at.Child(what).Key(string(name))
			for _, why := range validation.IsQualifiedName(string(name)) {
				errs = append(errs, field.Invalid(here, name, why))
			}
			if q.Sign() < 0 {
				errs = append(errs, field.Invalid(here, q.String(), "want 0 or more"))
			}
			if has, ok := g.Capacity[name]; what == "allocatable" && ok && q.Cmp(has) > 0 {
				errs = append(errs, field.Invalid(here, q.String(), "is more than the capacity"))
			}
		}
	}
	errs = append(errs, metav1validation.ValidateLabels(g.Labels, at.Child("labels"))...)
	for _, key := range slices.Sorted(maps.Keys(g.Annotations)) {
		for _, why := range validation.IsQualifiedName(key) {
			errs = append(errs, field.Invalid(at.Child("annotations"), key, why))
		}
	}
	for i, t := range g.Taints {
		here := at.Child("taints").Index(i)
		for _, why := range validation.IsQualifiedName(t.Key) {
			errs = append(errs, field.Invalid(here.Child("key"), t.Key, why))
		}
		for _, why := range validation.IsValidLabelValue(t.Value) {
			errs = append(errs, field.Invalid(here.Child("value"), t.Value, why))
		}
		effects := []corev1.TaintEffect{corev1.TaintEffectNoSchedule, corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoExecute}
		if !slices.Contains(effects, t.Effect) {
			errs = append(errs, field.NotSupported(here.Child("effect"), t.Effect, effects))
		}
	}
	for i, z := range append(slices.Clone(g.Zones), g.Region) {
		here := at.Child("region")
		if i < len(g.Zones) {
			if here = at.Child("zones").Index(i); z == "" {
				errs = append(errs, field.Required(here, ""))
			}
		}
		for _, why := range validation.IsValidLabelValue(z) {
			errs = append(errs, field.Invalid(here, z, why))
		}
	}
	return append(errs, g.Pods.check(at.Child("pods"))...)
}

func (p *PodPhases) check(at *field.Path) (errs field.ErrorList) {
	for _, x := range []struct {
		name string
		d    *metav1.Duration
	}{{"starts", p.Starts}, {"ready", p.Ready}, {"completes", p.Completes}} {
		if x.d != nil && x.d.Duration < 0 {
			errs = append(errs, field.Invalid(at.Child(x.name), x.d.Duration.String(), "want 0 or more"))
		}
	}
	if p.Load != "" && p.Load != LoadPerPod && p.Load != LoadShared {
		errs = append(errs, field.NotSupported(at.Child("load"), p.Load, []Load{LoadPerPod, LoadShared}))
	}
	for name, q := range p.Usage {
		switch {
		case name != corev1.ResourceCPU && name != corev1.ResourceMemory:
			errs = append(errs, field.NotSupported(at.Child("usage"), name, []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory}))
		case q.Sign() < 0:
			errs = append(errs, field.Invalid(at.Child("usage").Key(string(name)), q.String(), "want 0 or more"))
		}
	}
	return errs
}

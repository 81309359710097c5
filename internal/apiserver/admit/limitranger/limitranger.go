// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package limitranger is the LimitRanger plug-in: it gives containers without requests or limits the defaults of their
// namespace's LimitRanges, and rejects containers, pods and claims outside the allowed range.
//
// The plug-in applies the LimitRanges of a namespace in the order of their names, and reports all violations of an object
// together.
package limitranger

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

// annotation lists the values that the plug-in filled in.
const annotation = "kubernetes.io/limit-ranger"

var limitRanges = schema.GroupResource{Resource: "limitranges"}

// New makes the plug-in.
func New() admit.Plugin { return &plugin{} }

type plugin struct {
	admit.Readiness
	index admit.Index[*corev1.LimitRange]
}

var (
	_ admit.Mutator   = (*plugin)(nil)
	_ admit.Validator = (*plugin)(nil)
	_ admit.Follower  = (*plugin)(nil)
)

func (*plugin) Name() string { return "LimitRanger" }

// Follows implements [admit.Follower].
func (*plugin) Follows() []schema.GroupResource { return []schema.GroupResource{limitRanges} }

// Load implements [admit.Follower].
func (p *plugin) Load(ctx context.Context, stored feed.Lister) error {
	return p.index.Load(ctx, stored, limitRanges)
}

// Apply implements [admit.Follower].
func (p *plugin) Apply(_ context.Context, c *feed.Change) error {
	p.index.Apply(c)
	return nil
}

// ranges returns the LimitRanges that apply to a request.
func (p *plugin) ranges(a *admit.Attributes) []*corev1.LimitRange {
	found := p.index.In(a.Namespace)
	if len(found) == 0 || !limits(a) {
		return nil
	}
	return found
}

// limits reports whether LimitRanges apply to a request: to the creation of a pod or claim, the resize of a pod and the update of a claim,
// unless the object is being deleted.
func limits(a *admit.Attributes) bool {
	if a.Descriptor.Group != "" || a.Old != nil && a.Old.GetDeletionTimestamp() != nil {
		return false
	}
	switch a.Descriptor.Resource {
	case "pods":
		return a.Operation == admit.Create && a.Subresource == "" || a.Operation == admit.Update && a.Subresource == "resize"
	case "persistentvolumeclaims":
		return a.Subresource == "" && (a.Operation == admit.Create || a.Operation == admit.Update)
	}
	return false
}

// Handles implements [admit.Filter].
func (p *plugin) Handles(a *admit.Attributes) bool {
	return limits(a) && (len(p.index.In(a.Namespace)) > 0 || p.Refuse(a) != nil)
}

// Mutate fills in the missing requests and limits of a pod's containers.
func (p *plugin) Mutate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	if err := p.Refuse(a); err != nil && limits(a) {
		return err
	}
	found := p.ranges(a)
	if len(found) == 0 {
		return nil
	}
	pod, _, ok := admit.ObjectsOf[*corev1.Pod](a)
	if !ok {
		return nil
	}
	for _, r := range found {
		fill(r, pod)
	}
	return nil
}

// Validate compares a pod or a claim with the bounds.
func (p *plugin) Validate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	for _, r := range p.ranges(a) {
		var errs []error
		switch o := a.Object.(type) {
		case *corev1.Pod:
			errs = checkPod(r, o)
		case *corev1.PersistentVolumeClaim:
			errs = checkClaim(r, o)
		}
		if len(errs) > 0 {
			return admit.Forbidden(a, utilerrors.NewAggregate(errs))
		}
	}
	return nil
}

// fill gives a pod's containers the defaults of one LimitRange, and lists them in the annotation.
func fill(r *corev1.LimitRange, pod *corev1.Pod) {
	requests, limits := corev1.ResourceList{}, corev1.ResourceList{}
	for i := range r.Spec.Limits {
		if item := &r.Spec.Limits[i]; item.Type == corev1.LimitTypeContainer {
			maps.Copy(requests, item.DefaultRequest)
			maps.Copy(limits, item.Default)
		}
	}
	var said []string
	each := func(what string, containers []corev1.Container) {
		for i := range containers {
			c := &containers[i]
			said = tell(said, merge(&c.Resources.Requests, requests), "request for "+what+" "+c.Name)
			said = tell(said, merge(&c.Resources.Limits, limits), "limit for "+what+" "+c.Name)
		}
	}
	each("container", pod.Spec.Containers)
	each("init container", pod.Spec.InitContainers)
	if len(said) == 0 {
		return
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[annotation] = "LimitRanger plugin set: " + strings.Join(said, "; ")
}

func tell(said, names []string, of string) []string {
	if len(names) == 0 {
		return said
	}
	return append(said, strings.Join(names, ", ")+" "+of)
}

// merge adds the missing defaults to list, and returns their names.
func merge(list *corev1.ResourceList, defaults corev1.ResourceList) []string {
	var set []string
	if *list == nil {
		*list = corev1.ResourceList{}
	}
	for name, quantity := range defaults {
		if _, ok := (*list)[name]; !ok {
			(*list)[name] = quantity.DeepCopy()
			set = append(set, string(name))
		}
	}
	slices.Sort(set)
	return set
}

func checkClaim(r *corev1.LimitRange, claim *corev1.PersistentVolumeClaim) []error {
	var errs []error
	for i := range r.Spec.Limits {
		item := &r.Spec.Limits[i]
		if item.Type != corev1.LimitTypePersistentVolumeClaim {
			continue
		}
		c := check{of: item.Type, requests: claim.Spec.Resources.Requests}
		errs = append(errs, each(item.Min, c.least)...)
		errs = append(errs, each(item.Max, c.mostRequested)...)
	}
	return errs
}

func checkPod(r *corev1.LimitRange, pod *corev1.Pod) []error {
	var errs []error
	bounds := func(item *corev1.LimitRangeItem, requests, limits corev1.ResourceList) {
		c := check{of: item.Type, requests: requests, limits: limits}
		errs = append(errs, each(item.Min, c.least)...)
		errs = append(errs, each(item.Max, c.most)...)
		errs = append(errs, each(item.MaxLimitRequestRatio, c.ratio)...)
	}
	for i := range r.Spec.Limits {
		switch item := &r.Spec.Limits[i]; item.Type {
		case corev1.LimitTypeContainer:
			for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
				for j := range containers {
					bounds(item, containers[j].Resources.Requests, containers[j].Resources.Limits)
				}
			}
		case corev1.LimitTypePod:
			bounds(item,
				total(pod, func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Requests }),
				total(pod, func(r *corev1.ResourceRequirements) corev1.ResourceList { return r.Limits }))
		}
	}
	return errs
}

// each calls f for each bound, sorted by name.
func each(bounds corev1.ResourceList, f func(corev1.ResourceName, quantity.Quantity) error) []error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(bounds)) {
		if err := f(name, bounds[name]); err != nil {
			errs = append(errs, err)
		}
	}
	return errs
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourcequota

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
	quotaconfig "k8s.io/apiserver/pkg/admission/plugin/resourcequota/apis/resourcequota"
	maths "k8s.io/apiserver/pkg/quota/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/quota"
)

// running is a quota with the charges since it was read.
type running struct {
	*corev1.ResourceQuota
	used  corev1.ResourceList
	dirty bool
}

// checker compares writes with quotas.
type checker struct{ limited []quotaconfig.LimitedResource }

// check returns what a write must be charged, by the index of the quota. Its error rejects the write.
func (c *checker) check(ctx context.Context, all []*running, w *work) (map[int]corev1.ResourceList, error) {
	a, e := w.attributes, w.evaluator
	gr := a.Descriptor.GroupResource()
	var limitedScopes []corev1.ScopedResourceSelectorRequirement
	limitedNames := sets.New[string]()
	for i := range c.limited {
		l := &c.limited[i]
		in, err := c.scopes(w, l.MatchScopes)
		if err != nil {
			return nil, nil // as if nothing were limited
		}
		limitedScopes = append(limitedScopes, in...)
		if (schema.GroupResource{Group: l.APIGroup, Resource: l.Resource}) != gr {
			continue
		}
		if w.err != nil {
			return nil, w.err
		}
		for name, q := range w.usage {
			if q.Sign() > 0 && slices.ContainsFunc(l.MatchContains, func(part string) bool { return strings.Contains(string(name), part) }) {
				limitedNames.Insert(string(name))
			}
		}
	}

	var covered []corev1.ScopedResourceSelectorRequirement
	restricted := sets.New[string]()
	var interesting []int
	for i, r := range all {
		scopes := quota.Scopes(&r.Spec)
		in, err := c.scopes(w, scopes)
		if err != nil {
			return nil, fmt.Errorf("error matching scopes of quota %s, err: %w", r.Name, err) // upstream's words
		}
		covered = append(covered, in...)
		names, err := e.Names(ctx, maths.ResourceNames(r.Status.Hard))
		if err != nil {
			return nil, err
		}
		if len(names) == 0 || len(in) < len(scopes) {
			continue
		}
		if err := e.Requires(names, a.Object); err != nil {
			return nil, admit.Forbidden(a, fmt.Errorf("failed quota: %s: %w", r.Name, err)) // upstream's words
		}
		if slices.ContainsFunc(names, func(n corev1.ResourceName) bool { _, ok := r.used[n]; return !ok }) {
			return nil, admit.Forbidden(a, fmt.Errorf("status unknown for quota: %s, resources: %s", r.Name, printNames(names)))
		}
		interesting = append(interesting, i)
		for _, n := range names {
			restricted.Insert(string(n))
		}
	}

	if w.err != nil {
		return nil, w.err
	}
	if negative := maths.IsNegative(w.usage); len(negative) > 0 {
		return nil, admit.Forbidden(a, fmt.Errorf("quota usage is negative for resource(s): %s", printNames(negative)))
	}
	deltas, none, err := c.deltas(all, interesting, w)
	if err != nil || none {
		return nil, err
	}
	if missing := limitedNames.Difference(restricted); len(missing) > 0 {
		return nil, admit.Forbidden(a, fmt.Errorf("insufficient quota to consume: %v", strings.Join(sets.List(missing), ",")))
	}
	if e.Scoped() {
		var missing []corev1.ScopedResourceSelectorRequirement
		for _, s := range limitedScopes {
			if !slices.ContainsFunc(covered, func(c corev1.ScopedResourceSelectorRequirement) bool { return c.ScopeName == s.ScopeName }) {
				missing = append(missing, s)
			}
		}
		if len(missing) > 0 {
			return nil, fmt.Errorf("insufficient quota to match these scopes: %v", missing) // upstream's words
		}
	}
	return deltas, exceeds(all, deltas, w)
}

// scopes returns those that match the write's object.
func (c *checker) scopes(w *work, of []corev1.ScopedResourceSelectorRequirement) ([]corev1.ScopedResourceSelectorRequirement, error) {
	if !w.evaluator.Scoped() {
		return nil, nil
	}
	var in []corev1.ScopedResourceSelectorRequirement
	for _, s := range of {
		is, err := w.evaluator.InScope(s, w.attributes.Object)
		if err != nil {
			return nil, fmt.Errorf("error on matching scope %v: %w", s, err) // upstream's words
		}
		if is {
			in = append(in, s)
		}
	}
	return in, nil
}

// deltas returns what the write adds to each quota that matches it. For an object that the quota counted already, that
// is the increase. The bool is true if the write increases nothing.
func (c *checker) deltas(all []*running, interesting []int, w *work) (map[int]corev1.ResourceList, bool, error) {
	deltas := map[int]corev1.ResourceList{}
	update := w.attributes.Operation == admit.Update
	if update && w.attributes.Old == nil {
		return nil, false, admit.Forbidden(w.attributes, errors.New("unable to get previous usage since prior version of object was not found"))
	}
	var grown corev1.ResourceList
	if update {
		if w.beforeErr != nil {
			return nil, false, w.beforeErr
		}
		grown = maths.RemoveZeros(maths.SubtractWithNonNegativeResult(w.usage, w.before))
	}
	whole := maths.RemoveZeros(w.usage)
	for _, i := range interesting {
		delta := whole
		if update {
			counted, err := quota.InScopes(w.evaluator, quota.Scopes(&all[i].Spec), w.attributes.Old)
			if err != nil {
				return nil, false, err
			}
			if counted {
				delta = grown
			}
		}
		if len(delta) > 0 {
			deltas[i] = delta
		}
	}
	if len(interesting) > 0 {
		return deltas, len(deltas) == 0, nil
	}
	if update {
		return nil, len(grown) == 0, nil
	}
	return nil, len(whole) == 0, nil
}

// exceeds reduces the deltas to the resources that each quota limits, and rejects the write if one has too little left.
func exceeds(all []*running, deltas map[int]corev1.ResourceList, w *work) error {
	for i, r := range all {
		delta, ok := deltas[i]
		if !ok {
			continue
		}
		requested := maths.Mask(delta, maths.ResourceNames(r.Status.Hard))
		if len(requested) == 0 || w.paid(r.UID) {
			delete(deltas, i)
			continue
		}
		deltas[i] = requested
		if w.attributes.Subresource == "status" {
			continue
		}
		total := maths.Mask(maths.Add(r.used, requested), maths.ResourceNames(requested))
		if fits, over := maths.LessThanOrEqual(total, r.Status.Hard); !fits {
			return admit.Forbidden(w.attributes, fmt.Errorf("exceeded quota: %s, requested: %s, used: %s, limited: %s",
				r.Name, show(maths.Mask(requested, over)), show(maths.Mask(r.used, over)), show(maths.Mask(r.Status.Hard, over))))
		}
	}
	return nil
}

// show formats a list, sorted by name.
func show(list corev1.ResourceList) string {
	parts := make([]string, 0, len(list))
	for _, name := range sortedNames(maths.ResourceNames(list)) {
		q := list[name]
		parts = append(parts, string(name)+"="+q.String())
	}
	return strings.Join(parts, ",")
}

func printNames(names []corev1.ResourceName) string {
	var parts []string
	for _, n := range sortedNames(names) {
		parts = append(parts, string(n))
	}
	return strings.Join(parts, ",")
}

func sortedNames(names []corev1.ResourceName) []corev1.ResourceName {
	out := slices.Clone(names)
	slices.Sort(out)
	return out
}

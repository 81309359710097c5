// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package namespace

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
)

// remains are the objects left in a namespace after an attempt to empty it.
type remains struct {
	resources  map[schema.GroupVersionResource]int
	finalizers map[string]int
	discovery  error
	parsing    error
	errs       []error
	unexpected map[schema.GroupVersionResource]bool // resources whose remaining objects have no finalizers
	late       []error                              // reported as unexpected; not retried sooner
	onlyPods   bool                                 // only pods have been deleted so far
	grace      time.Duration                        // until the last object with a grace period should be gone
}

func newRemains() *remains {
	return &remains{resources: map[schema.GroupVersionResource]int{}, finalizers: map[string]int{}}
}

// add adds what is left of a group.
func (r *remains) add(group *remains) {
	maps.Copy(r.resources, group.resources)
	for f, n := range group.finalizers {
		r.finalizers[f] += n
	}
	r.errs = append(r.errs, group.errs...)
	r.late = append(r.late, group.late...)
	r.grace = max(r.grace, group.grace)
}

func (r *remains) count(gvr schema.GroupVersionResource, items []metav1.PartialObjectMetadata, now time.Time) {
	if len(items) == 0 {
		return
	}
	r.resources[gvr] = len(items)
	if r.unexpected == nil {
		r.unexpected = map[schema.GroupVersionResource]bool{}
	}
	r.unexpected[gvr] = !slices.ContainsFunc(items, func(item metav1.PartialObjectMetadata) bool { return len(item.Finalizers) > 0 })
	for _, item := range items {
		for _, f := range item.Finalizers {
			r.finalizers[f]++
		}
		if item.DeletionTimestamp != nil {
			r.grace = max(r.grace, item.DeletionTimestamp.Sub(now))
		}
	}
}

// overdue records that objects of a resource remain without a finalizer, unless their grace period lasts.
func (r *remains) overdue(namespace string, gvr schema.GroupVersionResource, lasts bool) {
	if r.unexpected[gvr] && !lasts {
		r.late = append(r.late, fmt.Errorf("unexpected items still remain in namespace: %s for gvr: %v", namespace, gvr))
	}
}

func (r *remains) objects() (n int) {
	for _, k := range r.resources {
		n += k
	}
	return n
}

// failure returns the errors that have to be retried.
func (r *remains) failure() error {
	return errors.Join(append(slices.Clone(r.errs), r.discovery, r.parsing)...)
}

// pause returns how long to wait for the remaining objects: half of the remaining grace period, at least a second.
func (r *remains) pause() time.Duration {
	return min(max(r.grace/2, 0)+time.Second, longest)
}

// conditions returns the namespace's conditions after this attempt, given those before.
func (r *remains) conditions(before []corev1.NamespaceCondition, now time.Time) []corev1.NamespaceCondition {
	var discoveryFailure, parsingFailure, contentFailure, content, finalizers string
	if r.discovery != nil {
		discoveryFailure = r.discovery.Error()
		var groups *discovery.ErrGroupDiscoveryFailed
		if errors.As(r.discovery, &groups) {
			discoveryFailure = fmt.Sprintf("Discovery failed for some groups, %d failing: %v", len(groups.Groups), r.discovery)
		}
	}
	if r.parsing != nil {
		parsingFailure = r.parsing.Error()
	}
	if all := slices.Concat(r.errs, r.late); len(all) > 0 {
		var texts []string
		for _, err := range all {
			texts = append(texts, err.Error())
		}
		slices.Sort(texts)
		contentFailure = fmt.Sprintf("Failed to delete all resource types, %d remaining: %s", len(texts), strings.Join(texts, ", "))
	}
	if !r.onlyPods {
		if len(r.resources) > 0 {
			var texts []string
			for gvr, n := range r.resources {
				texts = append(texts, fmt.Sprintf("%s.%s has %d resource instances", gvr.Resource, gvr.Group, n))
			}
			slices.Sort(texts)
			content = "Some resources are remaining: " + strings.Join(texts, ", ")
		}
		if len(r.finalizers) > 0 {
			var texts []string
			for f, n := range r.finalizers {
				texts = append(texts, fmt.Sprintf("%s in %d resource instances", f, n))
			}
			slices.Sort(texts)
			finalizers = "Some content in the namespace has finalizers remaining: " + strings.Join(texts, ", ")
		}
	}
	after := slices.Clone(before)
	for _, c := range []struct {
		kind                                 corev1.NamespaceConditionType
		trouble, reason, okReason, okMessage string
	}{
		{corev1.NamespaceDeletionDiscoveryFailure, discoveryFailure, "DiscoveryFailed", "ResourcesDiscovered",
			"All resources successfully discovered"},
		{corev1.NamespaceDeletionGVParsingFailure, parsingFailure, "GroupVersionParsingFailed", "ParsedGroupVersions",
			"All legacy kube types successfully parsed"},
		{corev1.NamespaceDeletionContentFailure, contentFailure, "ContentDeletionFailed", "ContentDeleted",
			"All content successfully deleted, may be waiting on finalization"},
		{corev1.NamespaceContentRemaining, content, "SomeResourcesRemain", "ContentRemoved", "All content successfully removed"},
		{corev1.NamespaceFinalizersRemaining, finalizers, "SomeFinalizersRemain", "ContentHasNoFinalizers",
			"All content-preserving finalizers finished"},
	} {
		next := corev1.NamespaceCondition{Type: c.kind, Status: corev1.ConditionFalse, Reason: c.okReason, Message: c.okMessage,
			LastTransitionTime: metav1.NewTime(now).Rfc3339Copy()}
		if c.trouble != "" {
			next.Status, next.Reason, next.Message = corev1.ConditionTrue, c.reason, c.trouble
		}
		i := slices.IndexFunc(after, func(had corev1.NamespaceCondition) bool { return had.Type == c.kind })
		if i < 0 {
			after = append(after, next)
			continue
		}
		if after[i].Status == next.Status {
			next.LastTransitionTime = after[i].LastTransitionTime
		}
		after[i] = next
	}
	return after
}

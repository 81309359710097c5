// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/component-helpers/resource"
)

var podStaticNames = []corev1.ResourceName{
	CountName(pods), corev1.ResourcePods,
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage,
	corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceRequestsEphemeralStorage,
	corev1.ResourceLimitsCPU, corev1.ResourceLimitsMemory, corev1.ResourceLimitsEphemeralStorage,
}

// mustSay are the names that, once limited, every container has to speak of. That is so for these alone.
var mustSay = []corev1.ResourceName{
	corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceRequestsCPU, corev1.ResourceRequestsMemory, corev1.ResourceLimitsCPU,
	corev1.ResourceLimitsMemory,
}

const requests = corev1.DefaultResourceRequestsPrefix

func podNames(of []corev1.ResourceName) []corev1.ResourceName {
	var out []corev1.ResourceName
	for _, name := range of {
		if slices.Contains(podStaticNames, name) || strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) ||
			strings.HasPrefix(string(name), corev1.ResourceRequestsHugePagesPrefix) || isExtendedRequest(name) {
			out = append(out, name)
		}
	}
	return out
}

// isExtendedRequest: extended resources are limited by what is requested alone.
func isExtendedRequest(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), requests) &&
		(!native(name) || strings.HasPrefix(string(name), requests+resourcev1.ResourceDeviceClassPrefix))
}

func native(name corev1.ResourceName) bool {
	return !strings.Contains(string(name), "/") || strings.Contains(string(name), corev1.ResourceDefaultNamespacePrefix)
}

// isExtended reports whether what a container asks for is an extended resource.
func isExtended(name corev1.ResourceName) bool {
	return strings.HasPrefix(string(name), resourcev1.ResourceDeviceClassPrefix) ||
		!native(name) && !strings.HasPrefix(string(name), requests) && len(validation.IsQualifiedName(requests+string(name))) == 0
}

// podEvaluator counts pods, and what those use that have not ended.
type podEvaluator struct{ cluster Cluster }

// Charges: beside what is new, a pod may be resized, and its deadline moves it from scope to scope.
func (podEvaluator) Charges(w Write) bool {
	switch w.Subresource {
	case "":
		if w.Create {
			return true
		}
		pod, ok := w.Object.(*corev1.Pod)
		old, had := w.Old.(*corev1.Pod)
		return ok && had && terminating(pod) != terminating(old)
	case "resize":
		return !w.Create
	}
	return false
}

func (podEvaluator) Names(_ context.Context, of []corev1.ResourceName) ([]corev1.ResourceName, error) {
	return podNames(of), nil
}

// Requires refuses a pod one of whose containers is silent about processors or memory, unless the pod as a whole speaks.
func (podEvaluator) Requires(names []corev1.ResourceName, obj runtime.Object) error {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return fmt.Errorf("measure pod: it is a %T", obj)
	}
	if resource.IsPodLevelResourcesSet(pod) {
		return nil
	}
	silent := map[string]sets.Set[string]{}
	for _, name := range intersect(names, mustSay) {
		for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
			for i := range containers {
				c := &containers[i]
				if _, ok := compute(c.Resources.Requests, c.Resources.Limits)[name]; ok {
					continue
				}
				if silent[string(name)] == nil {
					silent[string(name)] = sets.New[string]()
				}
				silent[string(name)].Insert(c.Name)
			}
		}
	}
	if len(silent) == 0 {
		return nil
	}
	var texts []string
	for name, containers := range silent {
		texts = append(texts, name+" for: "+strings.Join(sets.List(containers), ","))
	}
	slices.Sort(texts)
	return fmt.Errorf("must specify %s", strings.Join(texts, "; ")) // upstream's words
}

func (podEvaluator) Scoped() bool { return true }

func (podEvaluator) InScope(s corev1.ScopedResourceSelectorRequirement, obj runtime.Object) (bool, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return false, fmt.Errorf("measure pod: it is a %T", obj)
	}
	switch s.ScopeName {
	case corev1.ResourceQuotaScopeTerminating:
		return terminating(pod), nil
	case corev1.ResourceQuotaScopeNotTerminating:
		return !terminating(pod), nil
	case corev1.ResourceQuotaScopeBestEffort:
		return bestEffort(pod), nil
	case corev1.ResourceQuotaScopeNotBestEffort:
		return !bestEffort(pod), nil
	case corev1.ResourceQuotaScopePriorityClass:
		if class := pod.Spec.PriorityClassName; class != "" {
			return selects(s, class)
		}
		return selects(s)
	case corev1.ResourceQuotaScopeCrossNamespacePodAffinity:
		return looksElsewhere(pod), nil
	}
	return false, nil
}

// Usage of a pod that has ended, or ought to have, is no more than that it is there.
func (e podEvaluator) Usage(_ context.Context, obj runtime.Object) (corev1.ResourceList, error) {
	pod, ok := obj.(*corev1.Pod)
	if !ok {
		return nil, fmt.Errorf("measure pod: it is a %T", obj)
	}
	return podUsage(pod, e.cluster.Now()), nil
}

func podUsage(pod *corev1.Pod, now time.Time) corev1.ResourceList {
	if !active(pod, now) {
		return corev1.ResourceList{CountName(pods): *decimal(1)}
	}
	o := resource.PodResourcesOptions{UseStatusResources: true}
	used := compute(resource.PodRequests(pod, o), resource.PodLimits(pod, o))
	used[CountName(pods)] = *decimal(1)
	return used
}

// compute is what requests and limits come to in a quota's names.
func compute(requested, limits corev1.ResourceList) corev1.ResourceList {
	used := corev1.ResourceList{corev1.ResourcePods: *decimal(1)}
	for _, name := range []corev1.ResourceName{corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourceEphemeralStorage} {
		if q, ok := requested[name]; ok {
			used[name], used[requests+name] = q, q
		}
		if q, ok := limits[name]; ok {
			used["limits."+name] = q
		}
	}
	for name, q := range requested {
		if strings.HasPrefix(string(name), corev1.ResourceHugePagesPrefix) {
			used[name], used[requests+name] = q, q
		}
		if isExtended(name) {
			used[requests+name] = q
		}
	}
	return used
}

func terminating(pod *corev1.Pod) bool {
	return pod.Spec.ActiveDeadlineSeconds != nil && *pod.Spec.ActiveDeadlineSeconds >= 0
}

func bestEffort(pod *corev1.Pod) bool {
	if pod.Status.QOSClass != "" {
		return pod.Status.QOSClass == corev1.PodQOSBestEffort
	}
	none := func(r *corev1.ResourceRequirements) bool {
		for _, list := range []corev1.ResourceList{r.Requests, r.Limits} {
			if cpu, memory := list[corev1.ResourceCPU], list[corev1.ResourceMemory]; !cpu.IsZero() || !memory.IsZero() {
				return false
			}
		}
		return true
	}
	if resource.IsPodLevelResourcesSet(pod) {
		return none(pod.Spec.Resources)
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if !none(&containers[i].Resources) {
				return false
			}
		}
	}
	return true
}

// looksElsewhere: an affinity is to pods of other namespaces.
func looksElsewhere(pod *corev1.Pod) bool {
	if pod.Spec.Affinity == nil {
		return false
	}
	var terms []corev1.PodAffinityTerm
	add := func(required []corev1.PodAffinityTerm, preferred []corev1.WeightedPodAffinityTerm) {
		terms = append(terms, required...)
		for i := range preferred {
			terms = append(terms, preferred[i].PodAffinityTerm)
		}
	}
	if a := pod.Spec.Affinity.PodAffinity; a != nil {
		add(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	if a := pod.Spec.Affinity.PodAntiAffinity; a != nil {
		add(a.RequiredDuringSchedulingIgnoredDuringExecution, a.PreferredDuringSchedulingIgnoredDuringExecution)
	}
	return slices.ContainsFunc(terms, func(t corev1.PodAffinityTerm) bool { return len(t.Namespaces) != 0 || t.NamespaceSelector != nil })
}

// active: a pod is charged for what it uses until it has ended, or until its grace is twice over: a pod whose node is lost
// must not keep others from starting.
func active(pod *corev1.Pod, now time.Time) bool {
	if pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded {
		return false
	}
	over, leaving := Overdue(pod)
	return !leaving || !now.After(over)
}

// Overdue is the time from which a pod that is being deleted is no longer charged, whether or not it has terminated; false:
// it is not being deleted.
func Overdue(pod *corev1.Pod) (time.Time, bool) {
	if pod.DeletionTimestamp == nil || pod.DeletionGracePeriodSeconds == nil {
		return time.Time{}, false
	}
	return pod.DeletionTimestamp.Add(time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second), true
}

// PodReleases reports whether an update of a pod may have released usage that only the controller recalculates.
func PodReleases(before, updated *corev1.Pod, at time.Time) bool {
	return terminating(before) != terminating(updated) || active(before, at) && !active(updated, at) ||
		resized(before.Status.ContainerStatuses, updated.Status.ContainerStatuses) ||
		resized(before.Status.InitContainerStatuses, updated.Status.InitContainerStatuses)
}

func resized(before, now []corev1.ContainerStatus) bool {
	for i := range before {
		j := slices.IndexFunc(now, func(s corev1.ContainerStatus) bool { return s.Name == before[i].Name })
		if j >= 0 && !equality.Semantic.DeepEqual(before[i].Resources, now[j].Resources) {
			return true
		}
	}
	return false
}

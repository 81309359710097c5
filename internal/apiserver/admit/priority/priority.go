// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package priority is the Priority plug-in: it resolves a pod's priorityClassName to its priority and preemption
// policy, and rejects a second default class.
package priority

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

const systemCritical = 2_000_000_000

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "Priority" }

// Handles implements [admit.Filter].
func (plugin) Handles(a *admit.Attributes) bool {
	return (a.Operation == admit.Create || a.Operation == admit.Update) &&
		(a.Is("", "pods", "") || a.Is(classes().Group, classes().Resource, ""))
}

func classes() schema.GroupResource {
	return schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}
}

// Mutate resolves a new pod's class. It keeps the resolved values when an update omits them.
func (p plugin) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if !a.Is("", "pods", "") || a.Operation != admit.Create && a.Operation != admit.Update {
		return nil
	}
	pod, old, ok := admit.ObjectsOf[*corev1.Pod](a)
	if !ok {
		return apierrors.NewBadRequest("resource was marked with kind Pod but was unable to be converted")
	}
	if a.Operation == admit.Update {
		if old != nil && pod.Spec.Priority == nil {
			pod.Spec.Priority = old.Spec.Priority
		}
		if old != nil && pod.Spec.PreemptionPolicy == nil {
			pod.Spec.PreemptionPolicy = old.Spec.PreemptionPolicy
		}
		return nil
	}
	class, err := resolve(ctx, b, a, pod.Spec.PriorityClassName)
	if err != nil {
		return err
	}
	pod.Spec.PriorityClassName = class.Name
	value := class.Value
	if pod.Spec.Priority != nil && *pod.Spec.Priority != value {
		return admit.Forbidden(a, fmt.Errorf(
			"the integer value of priority (%d) must not be provided in pod spec; priority admission controller computed %d from the given PriorityClass name", *pod.Spec.Priority, value))
	}
	pod.Spec.Priority = &value
	if class.PreemptionPolicy != nil {
		policy := *class.PreemptionPolicy
		if given := pod.Spec.PreemptionPolicy; given != nil && *given != policy {
			return admit.Forbidden(a, fmt.Errorf(
				"the string value of PreemptionPolicy (%s) must not be provided in pod spec; priority admission controller computed %s from the given PriorityClass name", *given, policy))
		}
		pod.Spec.PreemptionPolicy = &policy
	}
	return nil
}

// Validate rejects a second default class.
func (p plugin) Validate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if !a.Is(classes().Group, classes().Resource, "") || a.Operation != admit.Create && a.Operation != admit.Update {
		return nil
	}
	class, _, ok := admit.ObjectsOf[*schedulingv1.PriorityClass](a)
	if !ok {
		return apierrors.NewBadRequest("resource was marked with kind PriorityClass but was unable to be converted")
	}
	if !class.GlobalDefault {
		return nil
	}
	present, err := defaultClass(ctx, b)
	if err != nil {
		return fmt.Errorf("get default priority class: %w", err)
	}
	if present != nil && (a.Operation == admit.Create || present.Name != class.Name) {
		return admit.Forbidden(a, fmt.Errorf("PriorityClass %v is already marked as default. Only one default can exist", present.Name))
	}
	return nil
}

// resolve returns the named class, the default class, or the built-in default.
func resolve(ctx context.Context, b resource.Backend, a *admit.Attributes, name string) (*schedulingv1.PriorityClass, error) {
	if name == "" {
		class, err := defaultClass(ctx, b)
		if err != nil {
			return nil, fmt.Errorf("get default priority class: %w", err)
		}
		if class == nil {
			lower := corev1.PreemptLowerPriority
			class = &schedulingv1.PriorityClass{PreemptionPolicy: &lower}
		}
		return class, nil
	}
	obj, err := b.Get(ctx, classes(), "", name)
	if class, ok := obj.(*schedulingv1.PriorityClass); err == nil && ok {
		return class, nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get priority class %s: %w", name, err)
	}
	if class := systemClass(name); class != nil {
		return class, nil
	}
	return nil, admit.Forbidden(a, fmt.Errorf("no PriorityClass with name %v was found", name))
}

// defaultClass returns the default class, or nil. If a race created several, it returns the one with the lowest value.
func defaultClass(ctx context.Context, b resource.Backend) (*schedulingv1.PriorityClass, error) {
	all, err := b.List(ctx, classes(), "")
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found *schedulingv1.PriorityClass
	for _, obj := range all {
		class, ok := obj.(*schedulingv1.PriorityClass)
		if ok && class.GlobalDefault && (found == nil || found.Value > class.Value) {
			found = class
		}
	}
	return found, nil
}

// systemClass returns the two classes that every cluster has, before their objects are stored.
func systemClass(name string) *schedulingv1.PriorityClass {
	lower := corev1.PreemptLowerPriority
	class := &schedulingv1.PriorityClass{PreemptionPolicy: &lower}
	class.Name = name
	switch name {
	case "system-node-critical":
		class.Value = systemCritical + 1000
	case "system-cluster-critical":
		class.Value = systemCritical
	default:
		return nil
	}
	return class
}

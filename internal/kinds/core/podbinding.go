// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/podspec"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/resource"
)

var podsResource = schema.GroupResource{Resource: "pods"}

// podBinding is pods/binding: a POST sets a pod's node.
func podBinding() resource.Subresource {
	return resource.Subresource{
		Name:             "binding",
		GroupVersionKind: corev1.SchemeGroupVersion.WithKind("Binding"),
		Verbs:            []string{"create"},
		Create: &resource.Create{
			New:     func() resource.Object { return &corev1.Binding{} },
			Default: func(obj resource.Object) { upstream.Default(obj) },
			Do:      bindPod,
		},
	}
}

// Binding describes bindings, which clients can only create, as with pods/binding.
func Binding() *resource.Descriptor {
	return kind.Describe[*corev1.Binding](resource.Descriptor{
		Resource:   "bindings",
		Kind:       "Binding",
		Namespaced: true,
		Verbs:      []string{"create"},
		Create: func(ctx context.Context, b resource.Backend, obj resource.Object, opts *metav1.CreateOptions) (resource.Object, error) {
			_, err := bindPod(ctx, b, obj.GetNamespace(), obj.GetName(), obj, opts)
			return nil, err
		},
	})
}

// bindPod sets a pod's node, once.
func bindPod(ctx context.Context, b resource.Backend, namespace, name string, obj resource.Object,
	opts *metav1.CreateOptions) (runtime.Object, error) {
	binding, ok := obj.(*corev1.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", obj))
	}
	if name != binding.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := upstream.PodBinding(binding); len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	if name == "" {
		return nil, apierrors.NewBadRequest("Name parameter required.") // upstream's words
	}
	conflict := func(format string, args ...any) error {
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, name, fmt.Errorf(format, args...))
	}
	_, err := b.Replace(ctx, podsResource, namespace, name, dryRun(opts.DryRun), func(newest resource.Object) (resource.Object, error) {
		pod, ok := newest.(*corev1.Pod)
		switch {
		case !ok:
			return nil, apierrors.NewInternalError(fmt.Errorf("bind pod: %T is no pod", obj))
		case binding.UID != "" && binding.UID != pod.UID:
			return nil, changed(namespace, name, "UID", string(binding.UID), string(pod.UID))
		case binding.ResourceVersion != "" && binding.ResourceVersion != pod.ResourceVersion:
			return nil, changed(namespace, name, "ResourceVersion", binding.ResourceVersion, pod.ResourceVersion)
		case pod.DeletionTimestamp != nil:
			return nil, conflict("pod %s is being deleted, cannot be assigned to a host", pod.Name)
		case pod.Spec.NodeName != "":
			return nil, conflict("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
		case len(pod.Spec.SchedulingGates) != 0:
			return nil, conflict("pod %v has non-empty .spec.schedulingGates", pod.Name)
		}
		return bound(pod, binding), nil
	})
	if err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// bound returns the pod on the binding's node. It shares unchanged parts with the pod, and equals what a read returns after the write.
func bound(pod *corev1.Pod, binding *corev1.Binding) *corev1.Pod {
	assigned := *pod
	assigned.Spec.NodeName = binding.Target.Name
	if upstream.Gate("ClearingNominatedNodeNameAfterBinding") {
		assigned.Status.NominatedNodeName = ""
	}
	assigned.Annotations = joined(pod.Annotations, binding.Annotations)
	podspec.DropInitAnnotations(assigned.Annotations)
	if len(assigned.Annotations) == 0 {
		assigned.Annotations = nil
	}
	if upstream.Gate("PodTopologyLabelsAdmission") {
		assigned.Labels = joined(pod.Labels, binding.Labels)
	}
	assigned.Status.Conditions = append(make([]corev1.PodCondition, 0, len(pod.Status.Conditions)+1), pod.Status.Conditions...)
	podspec.SetCondition(&assigned.Status, corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionTrue})
	return &assigned
}

// joined returns a new map with the entries of both, the second's where they differ; nil if both are empty.
func joined(first, second map[string]string) map[string]string {
	if len(first)+len(second) == 0 {
		return nil
	}
	all := make(map[string]string, len(first)+len(second))
	maps.Copy(all, first)
	maps.Copy(all, second)
	return all
}

// changed refuses to bind another pod than the intended one, in the words of upstream's store.
func changed(namespace, name, what, want, is string) error {
	return apierrors.NewConflict(podsResource, name, fmt.Errorf(
		"StorageError: invalid object, Code: 4, Key: /registry/pods/%s/%s, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: %s in precondition: %s, %s in object meta: %s",
		namespace, name, what, want, what, is))
}

// dryRun reports whether the options request a dry run.
func dryRun(options []string) bool { return len(options) > 0 }

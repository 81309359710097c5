// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// Control creates and deletes pods for an owner, and records events about the owner.
type Control struct {
	Client   kubernetes.Interface
	Recorder record.EventRecorder
}

// PodFromTemplate returns the pod that template describes.
func PodFromTemplate(template *corev1.PodTemplateSpec, owner metav1.Object, ref *metav1.OwnerReference) *corev1.Pod {
	prefix := owner.GetName() + "-"
	if len(validation.NameIsDNSSubdomain(prefix, true)) != 0 {
		prefix = owner.GetName()
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: prefix,
			Labels:       maps.Clone(template.Labels),
			Annotations:  maps.Clone(template.Annotations),
			Finalizers:   slices.Clone(template.Finalizers),
		},
		Spec: *template.Spec.DeepCopy(),
	}
	if ref != nil {
		pod.OwnerReferences = []metav1.OwnerReference{*ref}
	}
	return pod
}

// Create creates a pod in the owner's namespace.
func (c Control) Create(ctx context.Context, owner Owner, pod *corev1.Pod) (*corev1.Pod, error) {
	if len(pod.Labels) == 0 {
		return nil, errors.New("unable to create pods, no labels")
	}
	made, err := c.Client.CoreV1().Pods(owner.GetNamespace()).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			c.Recorder.Eventf(owner, corev1.EventTypeWarning, "FailedCreate", "Error creating: %v", err)
		}
		return nil, err
	}
	c.Recorder.Eventf(owner, corev1.EventTypeNormal, "SuccessfulCreate", "Created pod: %v", made.Name)
	return made, nil
}

// Delete deletes one of the owner's pods.
func (c Control) Delete(ctx context.Context, owner Owner, name string) error {
	err := c.Client.CoreV1().Pods(owner.GetNamespace()).Delete(ctx, name, metav1.DeleteOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return err
	case err != nil:
		c.Recorder.Eventf(owner, corev1.EventTypeWarning, "FailedDelete", "Error deleting: %v", err)
		return fmt.Errorf("unable to delete pods: %w", err)
	}
	c.Recorder.Eventf(owner, corev1.EventTypeNormal, "SuccessfulDelete", "Deleted pod: %v", name)
	return nil
}

// Owner is an object that owns pods.
type Owner interface {
	metav1.Object
	runtime.Object
}

// LacksSelector reports whether an owner's selector is missing or empty. It would select all pods, so the controller leaves such an owner
// alone; an event about the owner, which name describes ("deployment"), says why.
func LacksSelector(r record.EventRecorder, owner Owner, name string, s *metav1.LabelSelector) bool {
	if s != nil && len(s.MatchLabels)+len(s.MatchExpressions) > 0 {
		return false
	}
	r.Event(owner, corev1.EventTypeWarning, "SelectingAll", "This "+name+" is selecting all pods. A non-empty selector is required.")
	return true
}

// SlowStart calls do for 0 … n-1, at first one, then two at once, then four, and stops after the first round with an error, so that n
// creations that must all fail for the same reason do not all try. It returns how many succeeded, and the first error.
func SlowStart(n int, do func(i int) error) (succeeded int, err error) {
	for begin, size := 0, 1; begin < n; begin, size = begin+size, size*2 {
		size = min(size, n-begin)
		results := make([]error, size)
		var group errgroup.Group
		for i := range size {
			group.Go(func() error {
				results[i] = do(begin + i)
				return nil
			})
		}
		_ = group.Wait() // the results hold the errors
		for _, e := range results {
			if e == nil {
				succeeded++
			} else if err == nil {
				err = e
			}
		}
		if err != nil {
			return succeeded, err
		}
	}
	return succeeded, nil
}

// Concurrently calls do for 0 … n-1, at most width of them concurrently, and returns the first error.
func Concurrently(n, width int, do func(i int) error) error {
	var group errgroup.Group
	group.SetLimit(width)
	for i := range n {
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}

// byController is the index of children by the UID of their controller; it lists orphans under their namespace.
const byController = "controller"

// IndexByController adds the index for ByController to the informer of pods or other children.
func IndexByController(children cache.SharedIndexInformer) error {
	return controllers.Index(children, byController, func(obj any) ([]string, error) {
		child, ok := obj.(metav1.Object)
		if !ok {
			return nil, nil
		}
		if ref := metav1.GetControllerOfNoCopy(child); ref != nil {
			return []string{string(ref.UID)}, nil
		}
		return []string{"orphans of " + child.GetNamespace()}, nil
	})
}

// ByController returns the pods that owner controls, and with orphans also those in its namespace without a controller.
func ByController(pods cache.Indexer, owner metav1.Object, orphans bool) ([]*corev1.Pod, error) {
	return Children[*corev1.Pod](pods, owner, orphans)
}

// Children is ByController for any kind. It looks up orphans first, so that it finds a child that is adopted meanwhile, and only once.
func Children[T metav1.Object](children cache.Indexer, owner metav1.Object, orphans bool) ([]T, error) {
	var free []T
	if orphans {
		var err error
		if free, err = indexed[T](children, "orphans of "+owner.GetNamespace()); err != nil {
			return nil, err
		}
	}
	found, err := indexed[T](children, string(owner.GetUID()))
	if err != nil || len(free) == 0 {
		return found, err
	}
	held := make(map[types.UID]bool, len(found))
	for _, child := range found {
		held[child.GetUID()] = true
	}
	return append(found, slices.DeleteFunc(free, func(child T) bool { return held[child.GetUID()] })...), nil
}

func indexed[T metav1.Object](children cache.Indexer, key string) ([]T, error) {
	objects, err := children.ByIndex(byController, key)
	if err != nil {
		return nil, fmt.Errorf("look up children: %w", err)
	}
	found := make([]T, 0, len(objects))
	for _, o := range objects {
		if child, ok := o.(T); ok {
			found = append(found, child)
		}
	}
	return found, nil
}

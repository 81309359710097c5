// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// step executes one step for one pod. done reports that an event of it is on the way.
func (c *controller) step(ctx context.Context, in *observed, s step) (done bool, err error) {
	pods := c.client.CoreV1().Pods(in.set.Namespace)
	switch s.what {
	case create:
		if err = c.makeClaims(ctx, in, s.pod); err == nil {
			_, err = pods.Create(ctx, s.pod, metav1.CreateOptions{})
			if apierrors.IsAlreadyExists(err) {
				return false, err // the pod is another owner's, or the cache does not show it yet: no event will come
			}
			done = err == nil
		}
		c.told(in, "Create", s.pod, err)
		return done, err
	case remove:
		err = pods.Delete(ctx, s.pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.pod.UID))})
		if done = err == nil; apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			err = nil // it has gone
		}
		c.told(in, "Delete", s.pod, err)
		return done, err
	case furnish:
		if err = c.makeClaims(ctx, in, s.pod); err != nil {
			return false, err
		}
		if err = c.retain(ctx, in, s.pod); err != nil {
			c.told(in, "Update", s.pod, err)
		}
		return false, err
	case mend:
		return false, c.mend(ctx, in, s.pod)
	case retain:
		return false, c.retain(ctx, in, s.pod)
	}
	panic(fmt.Sprintf("unknown step %d", s.what))
}

// told records an event about a pod, with upstream's message. It records nothing for a conflict, which will be retried.
func (c *controller) told(in *observed, verb string, pod *corev1.Pod, err error) {
	if apierrors.IsConflict(err) {
		return
	}
	if err != nil {
		c.recorder.Eventf(in.set, corev1.EventTypeWarning, "Failed"+verb, "%s Pod %s in StatefulSet %s failed error: %s", verb, pod.Name,
			in.set.Name, err)
		return
	}
	c.recorder.Eventf(in.set, corev1.EventTypeNormal, "Successful"+verb, "%s Pod %s in StatefulSet %s successful", verb, pod.Name, in.set.Name)
}

// makeClaims creates the missing claims of a pod. A claim that is being deleted has to go first.
func (c *controller) makeClaims(ctx context.Context, in *observed, pod *corev1.Pod) error {
	var errs []error
	for _, want := range claims(in.set, pod) {
		if have := in.claim(want.object.Name); have != nil {
			if have.DeletionTimestamp != nil {
				errs = append(errs, fmt.Errorf("pvc %s is being deleted", have.Name))
			}
			continue
		}
		_, err := c.client.CoreV1().PersistentVolumeClaims(in.set.Namespace).Create(ctx, want.object, metav1.CreateOptions{})
		switch {
		case apierrors.IsAlreadyExists(err):
		case err != nil:
			errs = append(errs, fmt.Errorf("failed to create PVC %s: %w", want.object.Name, err)) // upstream's words
			c.recorder.Eventf(in.set, corev1.EventTypeWarning, "FailedCreate", "Create Claim %s for Pod %s in StatefulSet %s failed error: %s",
				want.object.Name, pod.Name, in.set.Name, err)
		default:
			c.recorder.Eventf(in.set, corev1.EventTypeNormal, "SuccessfulCreate", "Create Claim %s Pod %s in StatefulSet %s success",
				want.object.Name, pod.Name, in.set.Name)
		}
	}
	return errors.Join(errs...)
}

// retain sets the owners of the pod's claims by the retention policy.
func (c *controller) retain(ctx context.Context, in *observed, pod *corev1.Pod) error {
	for _, want := range claims(in.set, pod) {
		have := in.claim(want.object.Name)
		if have == nil {
			continue // created just now, or yet to be created
		}
		refs, off, conflict := owners(in.set, pod, have)
		if conflict {
			c.recorder.Eventf(in.set, corev1.EventTypeWarning, "ConflictingController",
				"PersistentVolumeClaim %s has a conflicting OwnerReference that acts as a manging controller, the retention policy is ignored for this claim", have.Name)
		}
		if !off {
			continue
		}
		update := have.DeepCopy()
		update.OwnerReferences = refs
		if _, err := c.client.CoreV1().PersistentVolumeClaims(have.Namespace).Update(ctx, update, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("could not update claim %s for delete policy ownerRefs: %w", have.Name, err)
		}
	}
	return nil
}

// mend corrects a pod's identity, its volumes, and its claims.
func (c *controller) mend(ctx context.Context, in *observed, pod *corev1.Pod) error {
	update := pod.DeepCopy()
	if !named(update) {
		_, n := ordinal(update)
		name(in.set, update, n)
	}
	err := c.makeClaims(ctx, in, update)
	if err == nil {
		err = c.retain(ctx, in, update)
	}
	if err == nil && (!named(pod) || !mounted(in.set, pod)) {
		if !mounted(in.set, update) {
			mount(in.set, update)
		}
		_, err = c.client.CoreV1().Pods(update.Namespace).Update(ctx, update, metav1.UpdateOptions{})
	}
	c.told(in, "Update", pod, err)
	return err
}

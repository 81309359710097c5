// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Claim adopts and releases the children of one owner.
type Claim[T metav1.Object] struct {
	Owner    metav1.Object
	Kind     schema.GroupVersionKind
	Selector labels.Selector
	// Fresh reads the owner from the server: before an adoption, it must still exist and not be deleted.
	Fresh func(context.Context) (metav1.Object, error)
	// Patch applies a strategic merge patch to a child.
	Patch func(ctx context.Context, child metav1.Object, patch []byte) error
	// Adoptable, if set, refuses orphans that match the selector.
	Adoptable func(T) bool
	// Finalizers are added to adopted children.
	Finalizers []string
}

// Settle returns the owner's children. It adopts those that match and have no controller, releases those that the owner controls and that
// match no longer, and leaves other owners' children alone. It returns the cached children unchanged: an adopted one shows its new owner
// only in its next version.
func (c Claim[T]) Settle(ctx context.Context, children []T) ([]T, error) {
	var held []T
	var errs []error
	checked := false
	var refused error
	for _, child := range children {
		matches := c.Selector.Matches(labels.Set(child.GetLabels()))
		ref := metav1.GetControllerOfNoCopy(child)
		switch {
		case ref != nil && ref.UID != c.Owner.GetUID():
		case ref != nil && matches:
			held = append(held, child)
		case c.Owner.GetDeletionTimestamp() != nil:
		case ref != nil:
			if err := c.release(ctx, child); err != nil {
				errs = append(errs, err)
			}
		case !matches || child.GetDeletionTimestamp() != nil || c.Adoptable != nil && !c.Adoptable(child):
		default:
			if !checked {
				checked, refused = true, c.mayAdopt(ctx)
			}
			if refused != nil {
				errs = append(errs, fmt.Errorf("adopt %s: %w", child.GetName(), refused))
				continue
			}
			switch err := c.adopt(ctx, child); {
			case err == nil:
				held = append(held, child)
			case !apierrors.IsNotFound(err):
				errs = append(errs, err)
			}
		}
	}
	return held, errors.Join(errs...)
}

func (c Claim[T]) mayAdopt(ctx context.Context) error {
	fresh, err := c.Fresh(ctx)
	if err != nil {
		return err
	}
	if fresh.GetUID() != c.Owner.GetUID() {
		return fmt.Errorf("%s %s/%s is gone: got uid %s, wanted %s", c.Kind.Kind, c.Owner.GetNamespace(), c.Owner.GetName(), fresh.GetUID(),
			c.Owner.GetUID())
	}
	if at := fresh.GetDeletionTimestamp(); at != nil {
		return fmt.Errorf("%s/%s has just been deleted at %v", c.Owner.GetNamespace(), c.Owner.GetName(), at)
	}
	return nil
}

type metadataPatch struct {
	Metadata struct {
		UID             types.UID        `json:"uid"`
		OwnerReferences []map[string]any `json:"ownerReferences"`
		Finalizers      []string         `json:"finalizers,omitempty"`
	} `json:"metadata"`
}

func (c Claim[T]) adopt(ctx context.Context, child T) error {
	var p metadataPatch
	p.Metadata.UID = child.GetUID()
	p.Metadata.OwnerReferences = []map[string]any{{
		"apiVersion": c.Kind.GroupVersion().String(), "kind": c.Kind.Kind, "name": c.Owner.GetName(), "uid": c.Owner.GetUID(),
		"controller": true, "blockOwnerDeletion": true,
	}}
	p.Metadata.Finalizers = c.Finalizers
	patch, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode adoption: %w", err)
	}
	return c.Patch(ctx, child, patch)
}

func (c Claim[T]) release(ctx context.Context, child T) error {
	var p metadataPatch
	p.Metadata.UID = child.GetUID()
	p.Metadata.OwnerReferences = []map[string]any{{"$patch": "delete", "uid": c.Owner.GetUID()}}
	patch, err := json.Marshal(p)
	if err != nil {
		return fmt.Errorf("encode release: %w", err)
	}
	err = c.Patch(ctx, child, patch)
	if apierrors.IsNotFound(err) || apierrors.IsInvalid(err) {
		// It is gone, or another object of the same name has taken its place, or the reference has been removed.
		return nil
	}
	return err
}

// PatchPod returns the Patch function of a claim on pods.
func PatchPod(client kubernetes.Interface) func(context.Context, metav1.Object, []byte) error {
	return func(ctx context.Context, pod metav1.Object, patch []byte) error {
		_, err := client.CoreV1().Pods(pod.GetNamespace()).Patch(ctx, pod.GetName(), types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		return err
	}
}

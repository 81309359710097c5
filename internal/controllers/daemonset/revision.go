// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"context"
	"fmt"
	"maps"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// revise makes the revision of the set's template the newest, and deletes old ones that no pod is of and that are over
// the history limit. It returns the hash of the newest; empty when the set's status had to be changed first.
func (c *controller) revise(ctx context.Context, set *appsv1.DaemonSet, pods []*corev1.Pod) (string, error) {
	all, err := c.revisions.ControllerRevisions(set.Namespace).List(labels.Everything())
	if err != nil {
		return "", fmt.Errorf("list revisions: %w", err)
	}
	mine := slices.DeleteFunc(all, func(r *appsv1.ControllerRevision) bool { return !workload.Controlled(r, set) })
	workload.SortRevisions(mine)
	data, err := workload.Snapshot(&set.Spec.Template)
	if err != nil {
		return "", err
	}
	var newest int64
	var current *appsv1.ControllerRevision
	for _, r := range mine {
		newest = max(newest, r.Revision)
		if workload.SameSnapshot(r.Data.Raw, data) {
			current = r
		}
	}
	switch {
	case current == nil:
		if current, err = c.createRevision(ctx, set, data, newest+1); err != nil || current == nil {
			return "", err
		}
	case current.Revision < newest:
		current = current.DeepCopy()
		current.Revision = newest + 1
		if current, err = c.client.AppsV1().ControllerRevisions(set.Namespace).Update(ctx, current, metav1.UpdateOptions{}); err != nil {
			return "", fmt.Errorf("update revision: %w", err)
		}
	}
	return current.Labels[appsv1.DefaultDaemonSetUniqueLabelKey], c.prune(ctx, set, mine, current.Name, pods)
}

func (c *controller) createRevision(ctx context.Context, set *appsv1.DaemonSet, data []byte, number int64) (*appsv1.ControllerRevision, error) {
	hash := workload.TemplateHash(&set.Spec.Template, set.Status.CollisionCount)
	r := &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name: set.Name + "-" + hash, Namespace: set.Namespace,
			Labels: maps.Clone(set.Spec.Template.Labels), Annotations: maps.Clone(set.Annotations),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, kind)},
		},
		Data: runtime.RawExtension{Raw: data}, Revision: number,
	}
	if r.Labels == nil {
		r.Labels = map[string]string{}
	}
	r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = hash
	api := c.client.AppsV1().ControllerRevisions(set.Namespace)
	made, err := api.Create(ctx, r, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		if err != nil {
			return nil, fmt.Errorf("create revision: %w", err)
		}
		return made, nil
	}
	there, err := api.Get(ctx, r.Name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get revision: %w", err)
	}
	if workload.Controlled(there, set) && workload.SameSnapshot(there.Data.Raw, data) {
		return there, nil
	}
	// Another template has the same hash: the next one is salted.
	update := set.DeepCopy()
	collisions := int32(1)
	if n := set.Status.CollisionCount; n != nil {
		collisions = *n + 1
	}
	update.Status.CollisionCount = &collisions
	if _, err := c.client.AppsV1().DaemonSets(set.Namespace).UpdateStatus(ctx, update, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("update status: %w", err)
	}
	return nil, nil
}

func (c *controller) prune(ctx context.Context, set *appsv1.DaemonSet, mine []*appsv1.ControllerRevision, current string, pods []*corev1.Pod) error {
	limit := 10
	if set.Spec.RevisionHistoryLimit != nil {
		limit = int(*set.Spec.RevisionHistoryLimit)
	}
	live := map[string]bool{}
	for _, pod := range pods {
		live[pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	var old []*appsv1.ControllerRevision
	for _, r := range mine {
		if r.Name != current && !live[r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] {
			old = append(old, r)
		}
	}
	for i := range len(old) - limit {
		err := c.client.AppsV1().ControllerRevisions(set.Namespace).Delete(ctx, old[i].Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete revision: %w", err)
		}
	}
	return nil
}

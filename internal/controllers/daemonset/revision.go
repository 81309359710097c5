// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package daemonset

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// revise makes the revision of the set's template the newest, and deletes old revisions that no pod uses beyond the history limit. It
// returns the hash of the newest, or "" if it had to update the set's status first.
func (c *controller) revise(ctx context.Context, set *appsv1.DaemonSet, pods []*corev1.Pod) (string, error) {
	mine, err := c.history(ctx, set)
	if err != nil {
		return "", err
	}
	data, err := workload.Snapshot(&set.Spec.Template)
	if err != nil {
		return "", err
	}
	var newest int64
	var current, old []*appsv1.ControllerRevision
	for _, r := range mine {
		if workload.SameSnapshot(r.Data.Raw, data) {
			current = append(current, r)
		} else {
			old = append(old, r)
			newest = max(newest, r.Revision)
		}
	}
	if len(current) == 0 {
		made, err := c.createRevision(ctx, set, data, newest+1)
		if err != nil || made == nil {
			return "", err
		}
		return made.Labels[appsv1.DefaultDaemonSetUniqueLabelKey], c.prune(ctx, set, old, pods)
	}
	kept, err := c.unite(ctx, current, pods)
	if err != nil {
		return "", err
	}
	if kept.Revision <= newest {
		kept = kept.DeepCopy()
		kept.Revision = newest + 1
		if kept, err = c.client.AppsV1().ControllerRevisions(set.Namespace).Update(ctx, kept, metav1.UpdateOptions{}); err != nil {
			return "", fmt.Errorf("update revision: %w", err)
		}
	}
	return kept.Labels[appsv1.DefaultDaemonSetUniqueLabelKey], c.prune(ctx, set, old, pods)
}

// history returns the set's revisions, oldest first, each labelled with its hash. It adopts matching revisions without a controller.
func (c *controller) history(ctx context.Context, set *appsv1.DaemonSet) ([]*appsv1.ControllerRevision, error) {
	all, err := workload.Children[*appsv1.ControllerRevision](c.revisions, set, true)
	if err != nil {
		return nil, err
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return nil, fmt.Errorf("read selector: %w", err)
	}
	api := c.client.AppsV1().ControllerRevisions(set.Namespace)
	mine, err := workload.Claim[*appsv1.ControllerRevision]{
		Owner: set, Kind: kind, Selector: selector, Fresh: c.fresh(set),
		Patch: func(ctx context.Context, r metav1.Object, patch []byte) error {
			_, err := api.Patch(ctx, r.GetName(), types.StrategicMergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	}.Settle(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("adopt revisions: %w", err)
	}
	workload.SortRevisions(mine)
	for i, r := range mine {
		if _, ok := r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]; ok {
			continue
		}
		r = r.DeepCopy()
		if r.Labels == nil {
			r.Labels = map[string]string{}
		}
		r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] = r.Name
		if mine[i], err = api.Update(ctx, r, metav1.UpdateOptions{}); err != nil {
			return nil, fmt.Errorf("label revision: %w", err)
		}
	}
	return mine, nil
}

// unite keeps one revision of the set's template, the newest: it labels the set's pods with that revision and deletes the others.
func (c *controller) unite(ctx context.Context, same []*appsv1.ControllerRevision, pods []*corev1.Pod) (*appsv1.ControllerRevision, error) {
	kept := same[len(same)-1]
	if len(same) == 1 {
		return kept, nil
	}
	hash := kept.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"labels": map[string]string{appsv1.DefaultDaemonSetUniqueLabelKey: hash}}})
	if err != nil {
		return nil, fmt.Errorf("encode label: %w", err)
	}
	for _, pod := range pods {
		if pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == hash {
			continue
		}
		if _, err := c.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			return nil, fmt.Errorf("label pod: %w", err)
		}
	}
	for _, r := range same[:len(same)-1] {
		if err := c.client.AppsV1().ControllerRevisions(r.Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{}); err != nil {
			return nil, fmt.Errorf("delete revision: %w", err)
		}
	}
	return kept, nil
}

func (c *controller) createRevision(ctx context.Context, set *appsv1.DaemonSet, data []byte, number int64) (*appsv1.ControllerRevision,
	error) {
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
	// Another template has the same hash: the next hash gets a salt.
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

// prune deletes the oldest revisions over the history limit. Revisions that pods use stay, though they count.
func (c *controller) prune(ctx context.Context, set *appsv1.DaemonSet, old []*appsv1.ControllerRevision, pods []*corev1.Pod) error {
	limit := 10
	if set.Spec.RevisionHistoryLimit != nil {
		limit = int(*set.Spec.RevisionHistoryLimit)
	}
	live := map[string]bool{}
	for _, pod := range pods {
		live[pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] = true
	}
	over := len(old) - limit
	for _, r := range old {
		if over <= 0 {
			return nil
		}
		if live[r.Labels[appsv1.DefaultDaemonSetUniqueLabelKey]] {
			continue
		}
		err := c.client.AppsV1().ControllerRevisions(set.Namespace).Delete(ctx, r.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete revision: %w", err)
		}
		over--
	}
	return nil
}

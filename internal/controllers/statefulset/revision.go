// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package statefulset

import (
	"context"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"

	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// hashLabel holds the hash of a revision's data.
const hashLabel = "controller.kubernetes.io/hash"

// history returns the set's revisions, oldest first. It adopts matching revisions without a controller.
func (c *controller) history(ctx context.Context, set *appsv1.StatefulSet, selector labels.Selector) ([]*appsv1.ControllerRevision, error) {
	all, err := c.revisions.ControllerRevisions(set.Namespace).List(selector)
	if err != nil {
		return nil, fmt.Errorf("list revisions: %w", err)
	}
	mine, err := workload.Claim[*appsv1.ControllerRevision]{
		Owner: set, Kind: kind, Selector: selector, Fresh: c.fresh(set),
		Patch: func(ctx context.Context, r metav1.Object, patch []byte) error {
			_, err := c.client.AppsV1().ControllerRevisions(r.GetNamespace()).Patch(ctx, r.GetName(), types.StrategicMergePatchType, patch,
				metav1.PatchOptions{})
			return err
		},
	}.Settle(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("adopt revisions: %w", err)
	}
	workload.SortRevisions(mine)
	return mine, nil
}

// revise makes the revision of the set's template the newest, stores it and the current one in in, and returns the history with it.
func (c *controller) revise(ctx context.Context, in *observed, history []*appsv1.ControllerRevision) ([]*appsv1.ControllerRevision, error) {
	set := in.set
	data, err := workload.Snapshot(&set.Spec.Template)
	if err != nil {
		return nil, err
	}
	if n := set.Status.CollisionCount; n != nil {
		in.collisions = *n
	}
	var update *appsv1.ControllerRevision
	var newest int64
	for _, r := range history {
		newest = r.Revision
		if workload.SameSnapshot(r.Data.Raw, data) {
			update = r
		}
	}
	switch {
	case update != nil && update.Revision == newest:
	case update != nil:
		update = update.DeepCopy()
		update.Revision = newest + 1
		if update, err = c.client.AppsV1().ControllerRevisions(set.Namespace).Update(ctx, update, metav1.UpdateOptions{}); err != nil {
			return nil, fmt.Errorf("update revision: %w", err)
		}
	case len(history) > 0 && sameTemplate(history[len(history)-1], set):
		update = history[len(history)-1]
	default:
		if update, err = c.createRevision(ctx, in, data, newest+1); err != nil {
			return nil, err
		}
		history = append(slices.Clone(history), update)
	}
	in.update = revision{update.Name, &set.Spec.Template}
	in.current = in.update
	for _, r := range history {
		if r.Name == set.Status.CurrentRevision && r.Name != update.Name {
			template, err := workload.Restore(r.Data.Raw)
			if err != nil {
				return nil, err
			}
			in.current = revision{r.Name, template}
		}
	}
	return history, nil
}

// known sets the revisions that the status names, for a set that is being deleted; false if there are none.
func (in *observed) known(history []*appsv1.ControllerRevision) bool {
	s := in.set.Status
	if n := s.CollisionCount; n != nil {
		in.collisions = *n
	}
	in.current, in.update = revision{s.CurrentRevision, &in.set.Spec.Template}, revision{s.UpdateRevision, &in.set.Spec.Template}
	return s.UpdateRevision != "" && len(history) > 0
}

// sameTemplate reports whether a revision restores the set's template although the data differ: a release with other fields may have
// written it.
func sameTemplate(r *appsv1.ControllerRevision, set *appsv1.StatefulSet) bool {
	template, err := workload.Restore(r.Data.Raw)
	return err == nil && equality.Semantic.DeepEqual(template, &set.Spec.Template)
}

func (c *controller) createRevision(ctx context.Context, in *observed, data []byte, number int64) (*appsv1.ControllerRevision, error) {
	set := in.set
	api := c.client.AppsV1().ControllerRevisions(set.Namespace)
	for {
		h := fnv.New32()
		h.Write(data)
		h.Write(strconv.AppendInt(nil, int64(in.collisions), 10))
		hash := rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
		prefix := set.Name[:min(len(set.Name), 223)]
		r := &appsv1.ControllerRevision{
			ObjectMeta: metav1.ObjectMeta{
				Name: prefix + "-" + hash, Namespace: set.Namespace,
				Labels: maps.Clone(set.Spec.Template.Labels), Annotations: maps.Clone(set.Annotations),
				OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, kind)},
			},
			Data: runtime.RawExtension{Raw: data}, Revision: number,
		}
		if r.Labels == nil {
			r.Labels = map[string]string{}
		}
		r.Labels[hashLabel] = hash
		made, err := api.Create(ctx, r, metav1.CreateOptions{})
		if err == nil {
			return made, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return nil, fmt.Errorf("create revision: %w", err)
		}
		there, err := api.Get(ctx, r.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("get revision: %w", err)
		}
		if workload.SameSnapshot(there.Data.Raw, data) {
			return there, nil
		}
		in.collisions++ // another template has the same hash: the next hash gets a salt
	}
}

// prune deletes the oldest revisions that no pod uses, over the history limit.
func (c *controller) prune(ctx context.Context, in *observed, history []*appsv1.ControllerRevision) error {
	limit := 10
	if n := in.set.Spec.RevisionHistoryLimit; n != nil {
		limit = int(*n)
	}
	if limit < 0 || in.set.DeletionTimestamp != nil {
		return nil
	}
	live := map[string]bool{in.current.name: true, in.update.name: true}
	for _, pod := range in.pods {
		live[pod.Labels[appsv1.StatefulSetRevisionLabel]] = true
	}
	old := slices.DeleteFunc(slices.Clone(history), func(r *appsv1.ControllerRevision) bool { return live[r.Name] })
	for i := range len(old) - limit {
		err := c.client.AppsV1().ControllerRevisions(in.set.Namespace).Delete(ctx, old[i].Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete revision: %w", err)
		}
	}
	return nil
}

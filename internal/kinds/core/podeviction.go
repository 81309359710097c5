// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package core

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/mortise-dev/mortise/internal/kinds/kind"
	"github.com/mortise-dev/mortise/internal/kinds/podspec"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/internal/podconditions"
	"github.com/mortise-dev/mortise/resource"
)

var (
	eviction        = policyv1.SchemeGroupVersion.WithKind("Eviction")
	budgetsResource = schema.GroupResource{Group: "policy", Resource: "poddisruptionbudgets"}
)

// maxEvictionTries bounds how often a pod that changes while it is evicted is looked at again.
const maxEvictionTries = 20

// maxDisruptedPods bounds the pods that a budget keeps count of while their deletion is not seen.
const maxDisruptedPods = 2000

// podEviction is pods/eviction: a POST that deletes a pod if its disruption budget has room.
func podEviction() resource.Subresource {
	return resource.Subresource{
		Name:             "eviction",
		GroupVersionKind: eviction,
		Verbs:            []string{"create"},
		Create: &resource.Create{
			New:     func() resource.Object { return &policyv1.Eviction{} },
			Default: func(obj resource.Object) { upstream.Default(obj) },
			Do:      evictPod,
		},
	}
}

// evictPod deletes a pod unless a budget says no.
func evictPod(ctx context.Context, b resource.Backend, namespace, name string, obj resource.Object,
	opts *metav1.CreateOptions) (runtime.Object, error) {
	request, ok := obj.(*policyv1.Eviction)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Eviction object: %T", obj))
	}
	if name != request.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	del := request.DeleteOptions.DeepCopy()
	if del == nil {
		del = &metav1.DeleteOptions{}
	}
	if o := del.IgnoreStoreReadErrorWithClusterBreakingPotential; o != nil && *o {
		return nil, apierrors.NewInvalid(eviction.GroupKind(), name, kind.Invalid(field.Invalid(
			field.NewPath("deleteOptions", "ignoreStoreReadErrorWithClusterBreakingPotential"), true,
			"can not be set for pod eviction, try after removing the option")))
	}
	switch {
	case len(del.DryRun) == 0:
		del.DryRun = opts.DryRun
	case len(opts.DryRun) > 0 && !slices.Equal(opts.DryRun, del.DryRun):
		return nil, fmt.Errorf("Non-matching dry-run options in request and content: %v and %v", opts.DryRun, del.DryRun)
	}
	for tries := 1; ; tries++ {
		again, err := evictOnce(ctx, b, namespace, name, del.DeepCopy())
		switch {
		case err == nil:
			return &metav1.Status{Status: metav1.StatusSuccess}, nil
		case !again || tries == maxEvictionTries || ctx.Err() != nil:
			return nil, err
		}
	}
}

// evictOnce evicts a pod as it is now. Where a pod is spared its budget for what it is, it is deleted only if it is that
// still: it may have become one that is missed. again says that it did, and that it is worth another look.
func evictOnce(ctx context.Context, b resource.Backend, namespace, name string, del *metav1.DeleteOptions) (again bool, err error) {
	got, err := b.Get(ctx, podsResource, namespace, name)
	if err != nil {
		return false, err
	}
	pod, ok := got.(*corev1.Pod)
	if !ok {
		return false, apierrors.NewInternalError(fmt.Errorf("evict pod: %T is no pod", got))
	}
	free := del.Preconditions == nil || del.Preconditions.ResourceVersion == nil // its client does not mind which version goes
	beyond, spared := beyondBudgets(pod), ""
	if !beyond {
		if spared, err = spendBudget(ctx, b, pod, dryRun(del.DryRun)); err != nil {
			return false, err
		}
	}
	if free && (spared != "" || beyond && pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil) {
		if del.Preconditions == nil {
			del.Preconditions = &metav1.Preconditions{}
		}
		del.Preconditions.ResourceVersion = &pod.ResourceVersion
	}
	if errs := metav1validation.ValidateDeleteOptions(del); len(errs) > 0 {
		return false, apierrors.NewInvalid(schema.GroupKind{Group: metav1.GroupName, Kind: "DeleteOptions"}, "", errs)
	}
	// The disruption is counted: if the client leaves now, it must not stay counted for a pod that is not evicted.
	// Otherwise the budget would allow none until its controller gives up on the pod, minutes later.
	err = markAndDelete(context.WithoutCancel(ctx), b, namespace, name, del)
	if free && spared != "" && apierrors.IsConflict(err) {
		return false, beingProcessed(spared)
	}
	return free && beyond && apierrors.IsConflict(err), err
}

// beyondBudgets reports pods whose end disrupts nothing: those that ended, have not begun, or are being deleted.
func beyondBudgets(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed ||
		pod.Status.Phase == corev1.PodPending || pod.DeletionTimestamp != nil
}

// spendBudget takes one disruption from the pod's budget, if it has one. For a pod that is not ready this may be
// unnecessary: then spared is the budget's name.
func spendBudget(ctx context.Context, b resource.Backend, pod *corev1.Pod, dry bool) (spared string, err error) {
	budget, err := budgetOf(ctx, b, pod)
	if err != nil || budget == nil {
		return "", err
	}
	if !podconditions.IsReady(pod) {
		if p := budget.Spec.UnhealthyPodEvictionPolicy; p != nil && *p == policyv1.AlwaysAllow {
			return budget.Name, nil
		}
		if budget.Status.CurrentHealthy >= budget.Status.DesiredHealthy && budget.Status.DesiredHealthy > 0 {
			return budget.Name, nil
		}
	}
	take := func(obj resource.Object) error {
		budget, ok := obj.(*policyv1.PodDisruptionBudget)
		if !ok {
			return apierrors.NewInternalError(fmt.Errorf("spend budget: %T is no budget", obj))
		}
		return spend(budget, pod.Name)
	}
	if w, ok := b.(resource.ServerWriter); ok {
		_, err = w.UpdateAsServer(ctx, budgetsResource, budget.Namespace, budget.Name, "status", dry, take)
		return "", err
	}
	_, err = b.Update(ctx, budgetsResource, budget.Namespace, budget.Name, dry, take)
	return "", err
}

const refused = "Cannot evict pod as it would violate the pod's disruption budget." // upstream's words

// because adds to an answer what it is about a budget that refuses.
func because(err *apierrors.StatusError, budget, format string, args ...any) error {
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type: policyv1.DisruptionBudgetCause, Message: fmt.Sprintf("The disruption budget %s ", budget) + fmt.Sprintf(format, args...),
	})
	return err
}

// beingProcessed asks a client to try again in a while.
func beingProcessed(budget string) error {
	return because(apierrors.NewTooManyRequests(refused, 10), budget, "is still being processed by the server.") // upstream's words
}

// spend counts a disruption in a budget, or says why there is no room.
func spend(budget *policyv1.PodDisruptionBudget, pod string) error {
	status := &budget.Status
	cause := func(err *apierrors.StatusError, format string, args ...any) error {
		return because(err, budget.Name, format, args...)
	}
	one := schema.GroupResource{Group: "policy", Resource: "poddisruptionbudget"}
	switch {
	case status.ObservedGeneration < budget.Generation:
		return beingProcessed(budget.Name)
	case status.DisruptionsAllowed < 0:
		return cause(apierrors.NewForbidden(one, budget.Name, errors.New("pdb disruptions allowed is negative")),
			"does not allow evicting pods currently: pdb disruptions allowed is negative")
	case len(status.DisruptedPods) > maxDisruptedPods:
		return cause(apierrors.NewForbidden(one, budget.Name,
			errors.New("DisruptedPods map too big - too many evictions not confirmed by PDB controller")),
			"does not allow evicting pods currently: too many pending evictions not confirmed by PDB controller")
	case status.DisruptionsAllowed == 0:
		err := apierrors.NewTooManyRequests(refused, 0)
		c := meta.FindStatusCondition(status.Conditions, policyv1.DisruptionAllowedCondition)
		said := c != nil && c.Status == metav1.ConditionFalse && c.Message != ""
		switch {
		case said && c.Reason == policyv1.SyncFailedReason:
			return cause(err, "does not allow evicting pods currently because it failed sync: %s", c.Message)
		case status.CurrentHealthy <= status.DesiredHealthy:
			return cause(err, "needs %d healthy pods and has %d currently", status.DesiredHealthy, status.CurrentHealthy)
		case said:
			return cause(err, "does not allow evicting pods currently (%s): %s", c.Reason, c.Message)
		default:
			return cause(err, "does not allow evicting pods currently")
		}
	}
	status.DisruptionsAllowed--
	if status.DisruptionsAllowed == 0 {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type:               policyv1.DisruptionAllowedCondition,
			Status:             metav1.ConditionFalse,
			Reason:             policyv1.InsufficientPodsReason,
			ObservedGeneration: status.ObservedGeneration,
		})
	}
	if status.DisruptedPods == nil {
		status.DisruptedPods = map[string]metav1.Time{}
	}
	status.DisruptedPods[pod] = metav1.Now()
	return nil
}

// budgetOf is the budget that selects the pod, nil if none does or the server has no such kind.
func budgetOf(ctx context.Context, b resource.Backend, pod *corev1.Pod) (*policyv1.PodDisruptionBudget, error) {
	all, err := b.List(ctx, budgetsResource, pod.Namespace)
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var found *policyv1.PodDisruptionBudget
	for _, obj := range all {
		budget, ok := obj.(*policyv1.PodDisruptionBudget)
		if !ok || budget.Namespace != pod.Namespace {
			continue
		}
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if found != nil {
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
				Status:  metav1.StatusFailure,
				Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
				Code:    500,
			}}
		}
		found = budget
	}
	return found, nil
}

// markAndDelete says in the pod's status why it goes, and deletes it.
func markAndDelete(ctx context.Context, b resource.Backend, namespace, name string, del *metav1.DeleteOptions) error {
	if !dryRun(del.DryRun) {
		marked, err := b.Update(ctx, podsResource, namespace, name, false, func(obj resource.Object) error {
			pod, ok := obj.(*corev1.Pod)
			if !ok {
				return apierrors.NewInternalError(fmt.Errorf("evict pod: %T is no pod", obj))
			}
			if err := holds(del.Preconditions, pod); err != nil {
				return err
			}
			podspec.SetCondition(&pod.Status, corev1.PodCondition{
				Type:    corev1.DisruptionTarget,
				Status:  corev1.ConditionTrue,
				Reason:  "EvictionByEvictionAPI",
				Message: "Eviction API: evicting",
			})
			return nil
		})
		if err != nil {
			return err
		}
		if p := del.Preconditions; p != nil && p.ResourceVersion != nil {
			version := marked.GetResourceVersion()
			p.ResourceVersion = &version
		}
	}
	return b.Delete(ctx, podsResource, namespace, name, del)
}

// holds checks a deletion's preconditions before the pod is marked.
func holds(p *metav1.Preconditions, pod *corev1.Pod) error {
	if p == nil {
		return nil
	}
	pods := schema.GroupResource{Resource: "Pod"}
	if p.UID != nil && *p.UID != "" && *p.UID != pod.UID {
		return apierrors.NewConflict(pods, pod.Name, fmt.Errorf(
			"the UID in the precondition (%s) does not match the UID in record (%s). The object might have been deleted and then recreated", *p.UID,
			pod.UID))
	}
	if p.ResourceVersion != nil && *p.ResourceVersion != "" && *p.ResourceVersion != pod.ResourceVersion {
		return apierrors.NewConflict(pods, pod.Name, fmt.Errorf(
			"the ResourceVersion in the precondition (%s) does not match the ResourceVersion in record (%s). The object might have been modified",
			*p.ResourceVersion, pod.ResourceVersion))
	}
	return nil
}

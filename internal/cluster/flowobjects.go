// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"strconv"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/internal/kinds/bootstrap"
)

// autoUpdate is the annotation that determines whether the server updates an object's spec.
const autoUpdate = flowcontrolv1.AutoUpdateAnnotationKey

// revise returns whether the spec of one of the server's own flow schemas or priority levels must follow the server's, and whether it had
// to correct the annotation, which it then has done.
func revise(m *metav1.ObjectMeta) (follow, annotated bool) {
	says, err := strconv.ParseBool(m.Annotations[autoUpdate])
	switch m.Name {
	case flowcontrolv1.FlowSchemaNameExempt, flowcontrolv1.FlowSchemaNameCatchAll:
		follow = true
	default:
		follow = says
		if err != nil { // not set: the first generation is unchanged
			follow = m.Generation == 1
		}
	}
	if err == nil && says == follow {
		return follow, false
	}
	if m.Annotations == nil {
		m.Annotations = map[string]string{}
	}
	m.Annotations[autoUpdate] = strconv.FormatBool(follow)
	return follow, true
}

// repairFlowSchema updates a flow schema from the server's, if it has to follow it.
func (b *bootstrapper) repairFlowSchema(ctx context.Context, want, is *flowcontrolv1.FlowSchema) error {
	is = is.DeepCopy()
	follow, changed := revise(&is.ObjectMeta)
	if follow && !apiequality.Semantic.DeepEqual(want.Spec, is.Spec) {
		is.Spec, changed = want.Spec, true
	}
	if !changed {
		return nil
	}
	_, err := b.self.ownClient().FlowcontrolV1().FlowSchemas().Update(ctx, is, metav1.UpdateOptions{FieldManager: bootstrap.Producer})
	return later(err)
}

// repairPriorityLevel does so with a priority level. Administrators choose the seats of the exempt level.
func (b *bootstrapper) repairPriorityLevel(ctx context.Context, want, is *flowcontrolv1.PriorityLevelConfiguration) error {
	is = is.DeepCopy()
	follow, changed := revise(&is.ObjectMeta)
	want = want.DeepCopy()
	if want.Spec.Exempt != nil && is.Spec.Exempt != nil {
		want.Spec.Exempt.NominalConcurrencyShares = is.Spec.Exempt.NominalConcurrencyShares
		want.Spec.Exempt.LendablePercent = is.Spec.Exempt.LendablePercent
	}
	if follow && !apiequality.Semantic.DeepEqual(want.Spec, is.Spec) {
		is.Spec, changed = want.Spec, true
	}
	if !changed {
		return nil
	}
	_, err := b.self.ownClient().FlowcontrolV1().PriorityLevelConfigurations().Update(ctx, is,
		metav1.UpdateOptions{FieldManager: bootstrap.Producer})
	return later(err)
}

// later ignores a conflict: the other write causes another repair.
func later(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}

// dropFormer deletes flow schemas and priority levels that the server manages by their annotation but does not know: those of another
// version of it.
func (b *bootstrapper) dropFormer(ctx context.Context, known []bootstrap.Object) error {
	schemas, levels := map[string]bool{}, map[string]bool{}
	for _, o := range known {
		switch o.Object.(type) {
		case *flowcontrolv1.FlowSchema:
			schemas[o.Object.GetName()] = true
		case *flowcontrolv1.PriorityLevelConfiguration:
			levels[o.Object.GetName()] = true
		}
	}
	former := func(known map[string]bool, m *metav1.ObjectMeta) (metav1.DeleteOptions, bool) {
		says, err := strconv.ParseBool(m.Annotations[autoUpdate])
		same := &metav1.Preconditions{UID: (*types.UID)(&m.UID), ResourceVersion: &m.ResourceVersion}
		return metav1.DeleteOptions{Preconditions: same}, err == nil && says && !known[m.Name]
	}
	c := b.self.ownClient().FlowcontrolV1()
	fs, err := c.FlowSchemas().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list flow schemas: %w", err)
	}
	for i := range fs.Items {
		if o, ok := former(schemas, &fs.Items[i].ObjectMeta); ok {
			if err := c.FlowSchemas().Delete(ctx, fs.Items[i].Name, o); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return err
			}
		}
	}
	pl, err := c.PriorityLevelConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list priority levels: %w", err)
	}
	for i := range pl.Items {
		if o, ok := former(levels, &pl.Items[i].ObjectMeta); ok {
			if err := c.PriorityLevelConfigurations().Delete(ctx, pl.Items[i].Name, o); err != nil && !apierrors.IsNotFound(err) &&
				!apierrors.IsConflict(err) {
				return err
			}
		}
	}
	return nil
}

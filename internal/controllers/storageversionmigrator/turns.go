// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storageversionmigrator

import (
	"context"
	"fmt"
	"strings"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/retry"
)

// manager is the field manager of the condition StorageMigrating and, after a migration, of the definitions' storedVersions.
const manager = "migration-runner-controller"

// next ends the finished migrations of a resource, and begins the next one.
func (c *controller) next(ctx context.Context, gr metav1.GroupResource) error {
	all, err := c.migrations.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list migrations: %w", err)
	}
	ended, begin := turns(all, gr)
	for _, m := range ended {
		if err := c.end(ctx, m.DeepCopy()); err != nil {
			return err
		}
	}
	if begin == nil {
		return nil
	}
	return c.begin(ctx, begin.DeepCopy())
}

// turns returns the migrations of a resource that are finished but still marked as running, and the one to begin: the oldest, if none is
// running.
func turns(all []*storagemigrationv1.StorageVersionMigration, gr metav1.GroupResource) (ended []*storagemigrationv1.StorageVersionMigration,
	begin *storagemigrationv1.StorageVersionMigration) {
	busy := false
	for _, m := range all {
		if m.Spec.Resource != gr {
			continue
		}
		switch running, done := under(m, storagemigrationv1.MigrationRunning), finished(m); {
		case running && done:
			ended = append(ended, m)
		case running:
			busy = true
		case !done && (begin == nil || before(m, begin)):
			begin = m
		}
	}
	if busy {
		begin = nil
	}
	return ended, begin
}

func before(a, b *storagemigrationv1.StorageVersionMigration) bool {
	if n := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); n != 0 {
		return n < 0
	}
	return strings.Compare(a.Name, b.Name) < 0
}

func (c *controller) begin(ctx context.Context, m *storagemigrationv1.StorageVersionMigration) error {
	err := c.mark(ctx, m.Spec.Resource, func(crd *apiextensionsv1.CustomResourceDefinition) (apiextensionsv1.CustomResourceDefinitionStatus,
		error) {
		return apiextensionsv1.CustomResourceDefinitionStatus{Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{{
			Type: apiextensionsv1.StorageMigrating, Status: apiextensionsv1.ConditionTrue, Reason: "MigrationRunning",
			Message: fmt.Sprintf("Migration %s is running", m.Name), ObservedGeneration: crd.Generation,
		}}}, nil
	})
	if err != nil {
		return err
	}
	c.set(m, storagemigrationv1.MigrationRunning, "MigrationRunning", running(0, 0, nil))
	return c.writeStatus(ctx, m)
}

func (c *controller) end(ctx context.Context, m *storagemigrationv1.StorageVersionMigration) error {
	succeeded := under(m, storagemigrationv1.MigrationSucceeded)
	if err := c.mark(ctx, m.Spec.Resource, func(crd *apiextensionsv1.CustomResourceDefinition) (apiextensionsv1.CustomResourceDefinitionStatus,
		error) {
		return outcome(crd, succeeded), nil
	}); err != nil {
		return err
	}
	meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
		Type: string(storagemigrationv1.MigrationRunning), Status: metav1.ConditionFalse, Reason: "MigrationCompleted",
		Message: "Migration completed", ObservedGeneration: m.Generation, LastTransitionTime: c.now(),
	})
	return c.writeStatus(ctx, m)
}

// outcome returns the definition's status after a migration. It drops the former storage versions if the definition is unchanged since the
// migration began.
func outcome(crd *apiextensionsv1.CustomResourceDefinition, succeeded bool) apiextensionsv1.CustomResourceDefinitionStatus {
	same := false
	for _, was := range crd.Status.Conditions {
		same = same || was.Type == apiextensionsv1.StorageMigrating && was.ObservedGeneration == crd.Generation
	}
	condition := apiextensionsv1.CustomResourceDefinitionCondition{
		Type: apiextensionsv1.StorageMigrating, Status: apiextensionsv1.ConditionFalse, ObservedGeneration: crd.Generation,
	}
	switch {
	case succeeded && same:
		condition.Reason = "MigrationSucceeded"
		condition.Message = "The migration has succeeded and the stored versions have been updated"
	case succeeded:
		condition.Reason = "MigrationSucceeded"
		condition.Message = "The migration has succeeded but the stored versions have not been updated due to a generation mismatch"
	default:
		condition.Reason, condition.Message = "MigrationFailed", "The migration has failed"
	}
	out := apiextensionsv1.CustomResourceDefinitionStatus{Conditions: []apiextensionsv1.CustomResourceDefinitionCondition{condition}}
	if same && succeeded {
		for _, v := range crd.Spec.Versions {
			if v.Storage {
				out.StoredVersions = []string{v.Name}
			}
		}
	}
	return out
}

// mark applies the result of status to the status of the resource's definition, if there is one.
func (c *controller) mark(ctx context.Context, gr metav1.GroupResource,
	status func(*apiextensionsv1.CustomResourceDefinition) (apiextensionsv1.CustomResourceDefinitionStatus, error)) error {
	api := c.dynamic.Resource(definitions)
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		got, err := api.Get(ctx, gr.Resource+"."+gr.Group, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		} else if err != nil {
			return err
		}
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(got.Object, crd); err != nil {
			return fmt.Errorf("read definition: %w", err)
		}
		is, err := status(crd)
		if err != nil {
			return err
		}
		_, err = api.ApplyStatus(ctx, crd.Name, c.statusOf(crd, is), metav1.ApplyOptions{FieldManager: manager, Force: true})
		return err
	})
	if err != nil {
		return fmt.Errorf("mark definition %s.%s: %w", gr.Resource, gr.Group, err)
	}
	return nil
}

// statusOf returns the status to apply, on condition that the definition is unchanged since it was read.
func (c *controller) statusOf(crd *apiextensionsv1.CustomResourceDefinition,
	is apiextensionsv1.CustomResourceDefinitionStatus) *unstructured.Unstructured {
	status := map[string]any{}
	var conditions []any
	for _, x := range is.Conditions {
		conditions = append(conditions, map[string]any{
			"type": string(x.Type), "status": string(x.Status), "reason": x.Reason, "message": x.Message,
			"observedGeneration": x.ObservedGeneration, "lastTransitionTime": c.clock.Now().UTC().Format(time.RFC3339),
		})
	}
	status["conditions"] = conditions
	if is.StoredVersions != nil {
		var versions []any
		for _, v := range is.StoredVersions {
			versions = append(versions, v)
		}
		status["storedVersions"] = versions
	}
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": apiextensionsv1.SchemeGroupVersion.String(), "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": crd.Name, "resourceVersion": crd.ResourceVersion},
		"status":   status,
	}}
}

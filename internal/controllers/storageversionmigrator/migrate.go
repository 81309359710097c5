// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storageversionmigrator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/metadata"
)

const (
	succeededReason = "StorageVersionMigrationSucceeded"
	failedReason    = "StorageVersionMigrationFailed"
	// nowhere is a namespace that cannot exist: its list is empty, and returns the current revision.
	nowhere = "@fake:svm_ns!"
	// page is the number of objects of one list request.
	page = 500
)

// needed are the verbs that a migration requires.
var needed = []string{"update", "patch", "list"}

// migrate takes the next step of a running migration.
func (c *controller) migrate(ctx context.Context, name string) error {
	cached, err := c.migrations.Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get migration: %w", err)
	}
	if finished(cached) || !under(cached, storagemigrationv1.MigrationRunning) {
		return nil
	}
	m := cached.DeepCopy()
	gvr, ok, err := c.served(m.Spec.Resource)
	if err != nil {
		return err
	}
	recorded := m.Status.ResourceVersion != ""
	if !ok {
		if left := patience - c.clock.Since(m.CreationTimestamp.Time); left > 0 {
			c.running.AddAfter(name, left) // unless its definition is created before
			return nil
		}
		if recorded {
			return c.fail(ctx, m, unhandled(errors.New("unable to obtain GVR from discovery"))) // upstream's words
		}
		return c.fail(ctx, m, "resource does not exist in discovery") // upstream's words
	}
	if !recorded {
		return c.record(ctx, m, gvr)
	}
	return c.rewrite(ctx, m, gvr)
}

// record records the revision before which objects have to be rewritten.
func (c *controller) record(ctx context.Context, m *storagemigrationv1.StorageVersionMigration, gvr schema.GroupVersionResource) error {
	info, err := c.describe(gvr)
	if err != nil {
		return err
	}
	if info == nil || !sets.New(info.Verbs...).HasAll(needed...) {
		return c.fail(ctx, m, fmt.Sprintf("resource %q does not support discovery operations: %v", gvr.String(), needed)) // upstream's words
	}
	var api metadata.ResourceInterface = c.metadata.Resource(gvr)
	if info.Namespaced {
		api = c.metadata.Resource(gvr).Namespace(nowhere)
	}
	list, err := api.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return fmt.Errorf("ask for revision of %s: %w", gvr.String(), err)
	}
	if _, err := resourceversion.CompareResourceVersion(list.ResourceVersion, list.ResourceVersion); err != nil {
		return c.fail(ctx, m, fmt.Sprintf("latest resourceVersion for %s is not valid: %v", gvr.String(), err)) // upstream's words
	}
	m.Status.ResourceVersion = list.ResourceVersion
	return c.writeStatus(ctx, m) // the update's event requeues the migration
}

// describe returns discovery's entry for a resource; nil if discovery does not know its group and version.
func (c *controller) describe(gvr schema.GroupVersionResource) (*metav1.APIResource, error) {
	list, err := c.discovery.ServerResourcesForGroupVersion(gvr.GroupVersion().String())
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if list != nil {
		for i := range list.APIResources {
			if list.APIResources[i].Name == gvr.Resource {
				return &list.APIResources[i], nil
			}
		}
	}
	if err == nil {
		err = errors.New("it is not there")
	}
	return nil, fmt.Errorf("discover %s: %w", gvr.String(), err)
}

// old is an object that may have to be rewritten.
type old struct{ namespace, name, version string }

// candidates returns the objects of a resource that were last written before a revision; total counts all objects.
func (c *controller) candidates(ctx context.Context, gvr schema.GroupVersionResource, since string) (found []old, total int, err error) {
	opts := metav1.ListOptions{Limit: page}
	for {
		list, err := c.metadata.Resource(gvr).List(ctx, opts)
		if err != nil {
			return nil, 0, fmt.Errorf("list %s: %w", gvr.String(), err)
		}
		for _, o := range list.Items {
			total++
			order, err := resourceversion.CompareResourceVersion(o.ResourceVersion, since)
			if err != nil {
				return nil, total, incomparable{err}
			}
			if order <= 0 {
				found = append(found, old{o.Namespace, o.Name, o.ResourceVersion})
			}
		}
		if opts.Continue = list.Continue; opts.Continue == "" {
			return found, total, nil
		}
	}
}

// incomparable reports an invalid revision: the migration can never succeed.
type incomparable struct{ error }

// rewrite rewrites each older object by a patch that changes nothing.
func (c *controller) rewrite(ctx context.Context, m *storagemigrationv1.StorageVersionMigration, gvr schema.GroupVersionResource) error {
	kind, err := c.mapper.KindFor(gvr)
	if err != nil {
		return c.fail(ctx, m, unhandled(err))
	}
	objects, total, err := c.candidates(ctx, gvr, m.Status.ResourceVersion)
	if errors.As(err, new(incomparable)) {
		return c.fail(ctx, m, unhandled(err))
	} else if err != nil {
		return err
	}
	left := len(objects)
	for _, o := range objects {
		patch, err := json.Marshal(map[string]any{
			"apiVersion": kind.GroupVersion().String(), "kind": kind.Kind, "metadata": map[string]any{"resourceVersion": o.version},
		})
		if err != nil {
			return fmt.Errorf("encode patch: %w", err)
		}
		var api metadata.ResourceInterface = c.metadata.Resource(gvr)
		if o.namespace != "" {
			api = c.metadata.Resource(gvr).Namespace(o.namespace)
		}
		_, err = api.Patch(ctx, o.name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: name})
		switch {
		case err == nil, apierrors.IsConflict(err), apierrors.IsNotFound(err):
			left-- // another client wrote or deleted it meanwhile
		case ctx.Err() != nil:
			return ctx.Err()
		case passing(err):
			if c.progress(m, left, total, err) {
				if failure := c.writeStatus(ctx, m); failure != nil {
					return errors.Join(err, failure)
				}
			}
			return err
		default:
			c.progress(m, left, total, nil)
			return c.fail(ctx, m, fmt.Sprintf("%d/%d not yet migrated. %s", left, total, unhandled(err)))
		}
	}
	c.progress(m, left, total, nil)
	c.set(m, storagemigrationv1.MigrationSucceeded, succeededReason, "Migration completed")
	return c.writeStatus(ctx, m)
}

// passing reports whether a retry may succeed after an error.
func passing(err error) bool {
	return utilnet.IsConnectionReset(err) || utilnet.IsHTTP2ConnectionLost(err) || utilnet.IsProbableEOF(err) ||
		utilnet.IsConnectionRefused(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsInternalError(err) || apierrors.IsTimeout(err)
}

// progress updates the condition Running, and reports whether it changed.
func (c *controller) progress(m *storagemigrationv1.StorageVersionMigration, left, total int, err error) bool {
	return c.set(m, storagemigrationv1.MigrationRunning, "MigrationRunning", running(left, total, err))
}

func (c *controller) fail(ctx context.Context, m *storagemigrationv1.StorageVersionMigration, message string) error {
	c.set(m, storagemigrationv1.MigrationFailed, failedReason, message)
	return c.writeStatus(ctx, m)
}

func (c *controller) set(m *storagemigrationv1.StorageVersionMigration, condition storagemigrationv1.MigrationConditionType, reason,
	message string) bool {
	return meta.SetStatusCondition(&m.Status.Conditions, metav1.Condition{
		Type: string(condition), Status: metav1.ConditionTrue, Reason: reason, Message: message, LastTransitionTime: c.now(),
	})
}

func (c *controller) now() metav1.Time { return metav1.NewTime(c.clock.Now()) }

func (c *controller) writeStatus(ctx context.Context, m *storagemigrationv1.StorageVersionMigration) error {
	_, err := c.client.StoragemigrationV1().StorageVersionMigrations().UpdateStatus(ctx, m, metav1.UpdateOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write status of migration: %w", err)
	}
	return nil
}

func unhandled(err error) string {
	return fmt.Sprintf("migration encountered unhandled error: %s", err) // upstream's words
}

// running returns the message of the condition Running.
func running(left, total int, err error) string {
	text := "The migration is running"
	switch {
	case total > 0 && left > 0:
		text += fmt.Sprintf(", %d/%d objects not yet migrated", left, total)
	case total > 0:
		text += fmt.Sprintf(", %d objects verified migrated", total)
	}
	if err != nil {
		text += "; transient error: " + err.Error()
	}
	return text
}

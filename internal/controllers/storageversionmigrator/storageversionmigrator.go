// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package storageversionmigrator rewrites stored objects, so that all of them have the server's current storage version and encryption key,
// as a StorageVersionMigration requests.
//
// One migration of a resource runs at a time, the oldest first. Its steps:
//
//	promote   the condition Running; a CustomResourceDefinition gets StorageMigrating, with its generation
//	record    status.resourceVersion: objects written later are new enough
//	rewrite   every older object gets a patch that changes nothing; the server stores it if the bytes differ
//	finish    Succeeded or Failed; then Running ends, and the definition's storedVersions shrink to the storage version
//	          if its generation is still the one that was promoted
//
// The status holds all state, so that a restart continues from it: an object that was already rewritten is newer than the recorded
// revision.
package storageversionmigrator

import (
	"context"
	"fmt"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/storagemigration/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/utils/clock"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// name is the controller's name, and the field manager of its patches.
const name = "storage-version-migrator-controller"

// definitions is the resource whose events show that a new resource is served.
var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// Controller describes the loop.
func Controller() controllers.Controller {
	migrations := storagemigrationv1.SchemeGroupVersion.WithResource("storageversionmigrations")
	return controllers.Controller{
		Name:    name,
		Account: "storage-version-migrator-controller",
		Inputs:  []schema.GroupVersionResource{migrations},
		Outputs: []schema.GroupVersionResource{migrations, definitions},
		New:     build,
	}
}

type controller struct {
	client     kubernetes.Interface
	dynamic    dynamic.Interface
	metadata   metadata.Interface
	discovery  discovery.DiscoveryInterface
	mapper     meta.ResettableRESTMapper
	clock      clock.PassiveClock
	migrations listers.StorageVersionMigrationLister
	// resources are synced to find which migration is next, and migrations to run them.
	resources *controllers.Queue[metav1.GroupResource]
	running   *controllers.Queue[string]
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	migrations := d.Informers.Storagemigration().V1().StorageVersionMigrations()
	c := &controller{
		client: d.Client, dynamic: d.Dynamic, metadata: d.Metadata, discovery: d.Discovery, mapper: d.RESTMapper, clock: d.Clock,
		migrations: migrations.Lister(),
		resources:  controllers.NewQueue[metav1.GroupResource](d, "migration-runner-controller", 1),
		running:    controllers.NewQueue[string](d, name, 5),
	}
	err := controllers.Subscribe(d, migrations.Informer(), controllers.OnAny(func(m *storagemigrationv1.StorageVersionMigration) {
		c.resources.Add(m.Spec.Resource)
		if under(m, storagemigrationv1.MigrationRunning) && !finished(m) {
			c.running.Add(m.Name)
		}
	}))
	if err != nil {
		return nil, err
	}
	err = controllers.Subscribe(d, d.MetadataInformers.ForResource(definitions).Informer(),
		controllers.Handler[*metav1.PartialObjectMetadata]{
			Add:    func(*metav1.PartialObjectMetadata) { c.lookAgain() },
			Update: func(_, _ *metav1.PartialObjectMetadata) { c.lookAgain() },
		})
	return controllers.RunnerFunc(func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return c.resources.Run(ctx, c.next) })
		group.Go(func() error { return c.running.Run(ctx, c.migrate) })
		return group.Wait()
	}), err
}

// lookAgain enqueues the migrations that wait for their resource to be served.
func (c *controller) lookAgain() {
	all, err := c.migrations.List(labels.Everything())
	if err != nil {
		return // a lister returns no error
	}
	for _, m := range all {
		if under(m, storagemigrationv1.MigrationRunning) && !finished(m) && m.Status.ResourceVersion == "" {
			c.mapper.Reset()
			c.running.Add(m.Name)
		}
	}
}

// served returns the version of a resource that the server prefers; false if there is none.
func (c *controller) served(gr metav1.GroupResource) (schema.GroupVersionResource, bool, error) {
	all, err := c.mapper.ResourcesFor(schema.GroupVersionResource{Group: gr.Group, Resource: gr.Resource})
	if err != nil && !meta.IsNoMatchError(err) {
		return schema.GroupVersionResource{}, false, fmt.Errorf("find resource %s: %w", gr.String(), err)
	}
	for _, r := range all {
		if r.Group == gr.Group && r.Resource == gr.Resource {
			return r, true, nil
		}
	}
	return schema.GroupVersionResource{}, false, nil
}

// patience is how long a migration waits for its resource to be served.
const patience = time.Minute

// under reports whether a migration's condition is true.
func under(m *storagemigrationv1.StorageVersionMigration, condition storagemigrationv1.MigrationConditionType) bool {
	return meta.IsStatusConditionTrue(m.Status.Conditions, string(condition))
}

// finished reports whether a migration has succeeded or failed.
func finished(m *storagemigrationv1.StorageVersionMigration) bool {
	return under(m, storagemigrationv1.MigrationSucceeded) || under(m, storagemigrationv1.MigrationFailed)
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package devices is the scheduler's state of devices (KEP-4381): [Manager] is the framework's SharedDRAManager, one for all profiles. It
// has the DeviceClasses, the ResourceSlices with the taints of DeviceTaintRules in them, and the ResourceClaims with the scheduler's own
// allocations ([Claims], claims.go).
//
// The states of a claim: the API has it without an allocation; a decision reserves devices for it, and the claim with its allocation is in
// flight; before the scheduler binds the pod, it writes the allocation and assumes the API's response until an informer has the same or a
// newer one. A device that any of the three assigns to a claim is taken. One lock guards all three, so that at no moment a taken device
// looks free.
//
// Other components receive changes through the manager ([Manager.Sources]), and so after it.
package devices

import (
	"context"
	"fmt"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	resourceinformers "k8s.io/client-go/informers/resource/v1"
	listers "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/deviceclass/extendedresourcecache"
	"k8s.io/dynamic-resource-allocation/resourceslice/tracker"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
)

// Manager is the framework's SharedDRAManager.
type Manager struct {
	factory  informers.SharedInformerFactory
	claims   *Claims
	slices   *tracker.Tracker
	classes  listers.DeviceClassLister
	resolver *extendedresourcecache.ExtendedResourceCache
}

var _ fwk.SharedDRAManager = (*Manager)(nil)

// New returns a manager over the factory's informers, which are not started yet. The caller stops the manager.
func New(ctx context.Context, factory informers.SharedInformerFactory) (*Manager, error) {
	resource := factory.Resource().V1()
	slices, err := tracker.StartTracker(ctx, tracker.Options{
		EnableDeviceTaintRules: true, EnableConsumableCapacity: true,
		SliceInformer: resourceinformers.ToTypedResourceSliceInformer(resource.ResourceSlices()),
		TaintInformer: resourceinformers.ToTypedDeviceTaintRuleInformer(resource.DeviceTaintRules()),
	})
	if err != nil {
		return nil, fmt.Errorf("follow resource slices: %w", err)
	}
	return &Manager{
		factory: factory, claims: NewClaims(), slices: slices, classes: resource.DeviceClasses().Lister(),
		resolver: extendedresourcecache.NewExtendedResourceCache(klog.FromContext(ctx)),
	}, nil
}

// Stop stops what New started.
func (m *Manager) Stop() { m.slices.Stop() }

// ResourceClaims, ResourceSlices, DeviceClasses and DeviceClassResolver implement the framework's interface.
func (m *Manager) ResourceClaims() fwk.ResourceClaimTracker { return m.claims }

// ResourceSlices lists the slices with all taints in them.
func (m *Manager) ResourceSlices() fwk.ResourceSliceLister { return taintedSlices{m.slices} }

// DeviceClasses lists the classes of the informer.
func (m *Manager) DeviceClasses() fwk.DeviceClassLister { return classList{m.classes} }

// DeviceClassResolver finds the class behind an extended resource (KEP-5004).
func (m *Manager) DeviceClassResolver() fwk.DeviceClassResolver { return m.resolver }

type taintedSlices struct{ *tracker.Tracker }

func (s taintedSlices) ListWithDeviceTaintRules() ([]*resourcev1.ResourceSlice, error) {
	return s.ListPatchedResourceSlices()
}

type classList struct{ listers.DeviceClassLister }

func (c classList) List() ([]*resourcev1.DeviceClass, error) {
	return c.DeviceClassLister.List(labels.Everything())
}

// Source accepts handlers for changes.
type Source interface {
	Hear(cache.ResourceEventHandler) error
}

type hear func(cache.ResourceEventHandler) error

func (f hear) Hear(h cache.ResourceEventHandler) error { return f(h) }

// Source returns the source of a resource's changes, which delivers them after the manager has handled them; nil for resources that it does
// not manage. Add handlers before [Manager.Follow].
func (m *Manager) Source(resource fwk.EventResource) Source {
	switch resource {
	case fwk.ResourceClaim:
		return hear(func(h cache.ResourceEventHandler) error { m.claims.Hear(h); return nil })
	case fwk.ResourceSlice:
		return hear(func(h cache.ResourceEventHandler) error { _, err := m.slices.AddEventHandler(h); return err })
	case fwk.DeviceClass:
		return hear(func(h cache.ResourceEventHandler) error { m.resolver.AddEventHandler(h); return nil })
	}
	return nil
}

// Follow subscribes to the informers. The returned checkers are done when the manager has handled all initial objects.
func (m *Manager) Follow() ([]cache.DoneChecker, error) {
	resource := m.factory.Resource().V1()
	claims, err := resource.ResourceClaims().Informer().AddEventHandler(m.claims.Handler())
	if err != nil {
		return nil, fmt.Errorf("follow resource claims: %w", err)
	}
	classes, err := resource.DeviceClasses().Informer().AddEventHandler(m.resolver)
	if err != nil {
		return nil, fmt.Errorf("follow device classes: %w", err)
	}
	return []cache.DoneChecker{claims.HasSyncedChecker(), classes.HasSyncedChecker(), m.slices.HasSyncedChecker()}, nil
}

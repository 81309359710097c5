// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	fwk "k8s.io/kube-scheduler/framework"
)

// everything is the list of events for a plug-in that does not register events.
var everything = [...]fwk.EventResource{
	fwk.PersistentVolume, fwk.PersistentVolumeClaim, fwk.CSINode, fwk.CSIDriver, fwk.CSIStorageCapacity, fwk.StorageClass,
	fwk.ResourceClaim, fwk.DeviceClass,
}

// watchOthers notifies the queue of changes of other objects than pods and nodes for which plug-ins have registered: built-in kinds, and
// any others as "plural.version.group". The caller shuts the returned factory down.
func (s *scheduler) watchOthers(ctx context.Context, connection *rest.Config,
	factory informers.SharedInformerFactory) (dynamicinformer.DynamicSharedInformerFactory, error) {
	wanted := map[fwk.EventResource]fwk.ActionType{}
	for _, p := range s.profiles {
		for _, registered := range p.Events() {
			for _, r := range registered {
				if r.Event.Resource != fwk.WildCard {
					wanted[r.Event.Resource] |= r.Event.ActionType
					continue
				}
				for _, resource := range everything {
					wanted[resource] |= r.Event.ActionType
				}
			}
		}
	}
	client, err := dynamic.NewForConfig(connection)
	if err != nil {
		return nil, fmt.Errorf("make scheduler client: %w", err)
	}
	others := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	// The results of node-local plug-ins for extended resources depend on the DeviceClasses.
	renew := func(any) { s.cache.Renew() }
	if err := s.devices.Source(fwk.DeviceClass).Hear(toolscache.ResourceEventHandlerFuncs{
		AddFunc: renew, UpdateFunc: func(_, obj any) { renew(obj) }, DeleteFunc: renew,
	}); err != nil {
		return nil, fmt.Errorf("watch %s: %w", fwk.DeviceClass, err)
	}
	for resource, actions := range wanted {
		if source := s.devices.Source(resource); source != nil {
			if err := source.Hear(s.otherHandler(ctx, resource, actions)); err != nil {
				return nil, fmt.Errorf("watch %s: %w", resource, err)
			}
			continue
		}
		informer, err := informerOf(resource, factory, others)
		if err != nil {
			s.logger.Warn("Could not watch a resource that a scheduler plug-in registered for", "resource", resource, "error", err)
			continue
		}
		if informer == nil {
			continue
		}
		if _, err := informer.AddEventHandler(s.otherHandler(ctx, resource, actions)); err != nil {
			return nil, fmt.Errorf("watch %s: %w", resource, err)
		}
	}
	others.Start(ctx.Done()) // a kind that is not served yet is watched once it is
	return others, nil
}

// informerOf returns a resource's informer; nil for pods and nodes, which are watched anyway, and for pod groups, which are not watched.
func informerOf(resource fwk.EventResource, f informers.SharedInformerFactory,
	others dynamicinformer.DynamicSharedInformerFactory) (toolscache.SharedIndexInformer, error) {
	switch resource {
	case fwk.Node, fwk.Pod, fwk.AssignedPod, fwk.UnscheduledPod, fwk.TargetPod, fwk.PodGroup, fwk.CompositePodGroup:
		return nil, nil
	case fwk.PersistentVolume:
		return f.Core().V1().PersistentVolumes().Informer(), nil
	case fwk.PersistentVolumeClaim:
		return f.Core().V1().PersistentVolumeClaims().Informer(), nil
	case fwk.CSINode:
		return f.Storage().V1().CSINodes().Informer(), nil
	case fwk.CSIDriver:
		return f.Storage().V1().CSIDrivers().Informer(), nil
	case fwk.CSIStorageCapacity:
		return f.Storage().V1().CSIStorageCapacities().Informer(), nil
	case fwk.StorageClass:
		return f.Storage().V1().StorageClasses().Informer(), nil
	case fwk.VolumeAttachment:
		return f.Storage().V1().VolumeAttachments().Informer(), nil
	}
	if strings.Count(string(resource), ".") < 2 {
		return nil, fmt.Errorf("%q is not of the form plural.version.group", resource)
	}
	gvr, _ := schema.ParseResourceArg(string(resource))
	if gvr == nil {
		return nil, fmt.Errorf("%q is not of the form plural.version.group", resource)
	}
	return others.ForResource(*gvr).Informer(), nil
}

// otherHandler notifies the queue of the actions for which a plug-in has registered.
func (s *scheduler) otherHandler(ctx context.Context, resource fwk.EventResource, actions fwk.ActionType) toolscache.ResourceEventHandler {
	var h toolscache.ResourceEventHandlerFuncs
	if actions&fwk.Add != 0 {
		h.AddFunc = func(obj any) { s.queue.MoveOnEvent(ctx, happened(resource, fwk.Add, nil, obj)) }
	}
	if actions&fwk.Update != 0 {
		h.UpdateFunc = func(old, obj any) { s.queue.MoveOnEvent(ctx, happened(resource, fwk.Update, old, obj)) }
	}
	if actions&fwk.Delete != 0 {
		h.DeleteFunc = func(obj any) { s.queue.MoveOnEvent(ctx, happened(resource, fwk.Delete, last(obj), nil)) }
	}
	return h
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package attachdetach attaches the volumes of CSI drivers to the nodes whose pods use them, and detaches them when no pod does.
//
// To attach a volume, the controller creates a VolumeAttachment; the driver's external-attacher attaches the volume and sets
// status.attached. Then the controller lists the volume in the node's status.volumesAttached, and the node mounts it. To detach one, it
// removes the volume from that list, makes sure that the node does not list it in status.volumesInUse, and deletes the VolumeAttachment.
//
// The order of these writes keeps a volume from being detached while it is mounted. A node first writes volumesInUse and then reads
// volumesAttached; the controller first writes volumesAttached and then reads volumesInUse, from the answer to its write. So one of the two
// sees the other. If a node does not report for six minutes, or has the taint out-of-service, the controller detaches without asking it.
//
// There are two queues. The key of the first is a volume, so that one worker decides about all nodes that it is or shall be attached to
// (sync.go): a volume that is not shared is never attached to two nodes. The key of the second is a node: one write of its status lists and
// removes many volumes (nodestatus.go). Both syncs compare what the caches show and follow no history; [registry] holds what the API does
// not: since when a volume waits, and which events pods have. After a restart, VolumeAttachments and nodes' statuses bring it back.
//
// Volumes of the former in-tree drivers count as those of the CSI drivers that replaced them.
package attachdetach

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"golang.org/x/sync/errgroup"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// Controller describes the loop.
func Controller() controllers.Controller {
	core, storage := corev1.SchemeGroupVersion, storagev1.SchemeGroupVersion
	nodes, attachments := core.WithResource("nodes"), storage.WithResource("volumeattachments")
	s := defaults()
	return controllers.Controller{
		Name:      "persistentvolume-attach-detach-controller",
		Account:   "attachdetach-controller",
		Component: "attachdetach-controller",
		Inputs: []schema.GroupVersionResource{nodes, attachments, core.WithResource("pods"), core.WithResource("persistentvolumes"),
			core.WithResource("persistentvolumeclaims"), storage.WithResource("csidrivers")},
		Outputs:  []schema.GroupVersionResource{nodes, attachments},
		Settings: s.declare(),
		Check:    func(*controllers.Cluster) error { return s.check() },
		New:      func(d *controllers.Deps) (controllers.Runner, error) { return build(d, *s) },
	}
}

// workers is how many volumes, and how many nodes, are synced concurrently.
const workers = 10

type controller struct {
	client   kubernetes.Interface
	events   reporter
	clock    clock.PassiveClock
	settings settings
	meters   *meters

	catalog     *catalog
	nodes       corelisters.NodeLister
	attachments cache.Indexer

	registry *registry
	ledger   *ledger

	volumeQueue, nodeQueue *controllers.Queue[string]
}

func build(d *controllers.Deps, s settings) (controllers.Runner, error) {
	core, storage := d.Informers.Core().V1(), d.Informers.Storage().V1()
	pods, claims, volumes, nodes := core.Pods(), core.PersistentVolumeClaims(), core.PersistentVolumes(), core.Nodes()
	drivers, attachments := storage.CSIDrivers(), storage.VolumeAttachments()
	c := &controller{
		client: d.Client, events: reporter{d.Recorder}, clock: d.Clock, settings: s,
		catalog: &catalog{
			pods: pods.Informer().GetIndexer(), claims: claims.Lister(), volumes: volumes.Informer().GetIndexer(), volume: volumes.Lister(),
			drivers: drivers.Lister(), migrated: newTranslator(),
		},
		nodes: nodes.Lister(), attachments: attachments.Informer().GetIndexer(),
		registry: newRegistry(), ledger: newLedger(),
		volumeQueue: controllers.NewQueue[string](d, "attachdetach_volumes", workers),
		nodeQueue:   controllers.NewQueue[string](d, "attachdetach_nodes", workers),
	}
	var err error
	c.meters, err = newMeters(d, c)
	err = errors.Join(err,
		c.catalog.index(pods.Informer(), volumes.Informer(), attachments.Informer()),
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{
			Add: c.podHeard,
			Update: func(before, updated *corev1.Pod) {
				if before.UID != updated.UID {
					c.podHeard(before)
				}
				if before.UID != updated.UID || before.Spec.NodeName != updated.Spec.NodeName || terminated(before) != terminated(updated) {
					c.podHeard(updated)
				}
			},
			Delete: c.podHeard,
		}),
		controllers.Subscribe(d, claims.Informer(), controllers.Handler[*corev1.PersistentVolumeClaim]{
			Add: c.claimHeard,
			Update: func(before, updated *corev1.PersistentVolumeClaim) {
				if before.UID != updated.UID || before.Status.Phase != updated.Status.Phase || before.Spec.VolumeName != updated.Spec.VolumeName {
					c.claimHeard(updated)
				}
			},
		}),
		controllers.Subscribe(d, volumes.Informer(), controllers.OnAny(c.volumeHeard)),
		controllers.Subscribe(d, attachments.Informer(), controllers.OnAny(c.attachmentHeard)),
		controllers.Subscribe(d, drivers.Informer(), controllers.OnAny(c.driverHeard)),
		controllers.Subscribe(d, nodes.Informer(), controllers.Handler[*corev1.Node]{
			Add: func(node *corev1.Node) {
				c.ledger.returned(node.Name)
				c.nodeQueue.Add(node.Name)
				c.nodeHeard(node.Name)
			},
			Update: c.nodeUpdated,
			Delete: func(node *corev1.Node) {
				if len(c.registry.onNode(node.Name)) > 0 {
					c.ledger.left(node.Name, node.Status.VolumesInUse)
				}
				c.nodeHeard(node.Name)
			},
		}),
	)
	return controllers.RunnerFunc(c.run), err
}

func (c *controller) run(ctx context.Context) error {
	if err := c.reconstruct(); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.volumeQueue.Run(ctx, c.syncVolume) })
	group.Go(func() error { return c.nodeQueue.Run(ctx, c.syncNode) })
	return group.Wait()
}

// reconstruct reads what earlier incarnations attached: what nodes' statuses list, and the VolumeAttachments.
func (c *controller) reconstruct() error {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	for _, node := range nodes {
		for _, attached := range node.Status.VolumesAttached {
			name := string(attached.Name)
			if _, _, ok := parseName(name); !ok {
				continue
			}
			c.registry.track(name, node.Name).confirmed = true
			c.ledger.list(node.Name, name)
			c.volumeQueue.Add(name)
		}
	}
	for _, obj := range c.attachments.List() {
		if attachment, ok := obj.(*storagev1.VolumeAttachment); ok {
			if name := c.volumeOf(attachment); name != "" {
				c.registry.track(name, attachment.Spec.NodeName)
				c.volumeQueue.Add(name)
			}
		}
	}
	return nil
}

// podHeard enqueues a pod's volumes.
func (c *controller) podHeard(pod *corev1.Pod) {
	for _, name := range c.registry.ofPod(pod.UID) {
		c.volumeQueue.Add(name)
	}
	if pod.Spec.NodeName == "" {
		return
	}
	for i := range pod.Spec.Volumes {
		if d, err := c.catalog.diskOf(pod, &pod.Spec.Volumes[i]); err == nil && d != nil {
			c.volumeQueue.Add(d.name())
		}
	}
}

func (c *controller) claimHeard(claim *corev1.PersistentVolumeClaim) {
	if claim.Spec.VolumeName == "" {
		return
	}
	if pv, err := c.catalog.volume.Get(claim.Spec.VolumeName); err == nil {
		c.volumeHeard(pv)
	}
}

func (c *controller) volumeHeard(pv *corev1.PersistentVolume) {
	if d := c.catalog.migrated.diskOf(pv); d != nil {
		c.volumeQueue.Add(d.name())
	}
}

func (c *controller) attachmentHeard(attachment *storagev1.VolumeAttachment) {
	if name := c.volumeOf(attachment); name != "" {
		c.volumeQueue.Add(name)
	}
}

// driverHeard enqueues the volumes of a driver: whether they need to be attached may have changed.
func (c *controller) driverHeard(driver *storagev1.CSIDriver) {
	for _, name := range append(c.catalog.volumes.ListIndexFuncValues(byName), c.registry.names()...) {
		if of, _, ok := parseName(name); ok && of == driver.Name {
			c.volumeQueue.Add(name)
		}
	}
}

// nodeHeard enqueues the volumes that are or shall be attached to a node.
func (c *controller) nodeHeard(node string) {
	for _, name := range c.registry.onNode(node) {
		c.volumeQueue.Add(name)
	}
	found, err := c.catalog.pods.ByIndex(byNode, node)
	if err != nil {
		return // the index exists, since the constructor added it
	}
	for _, f := range found {
		if pod, ok := f.(*corev1.Pod); ok {
			c.podHeard(pod)
		}
	}
}

func (c *controller) nodeUpdated(before, updated *corev1.Node) {
	if before.UID != updated.UID || managed(before) != managed(updated) || ready(before) != ready(updated) ||
		outOfService(before) != outOfService(updated) {
		c.nodeQueue.Add(updated.Name)
		c.nodeHeard(updated.Name)
		return
	}
	if !sameVolumes(before.Status.VolumesAttached, updated.Status.VolumesAttached) {
		c.nodeQueue.Add(updated.Name)
	}
	for _, name := range difference(before.Status.VolumesInUse, updated.Status.VolumesInUse) {
		c.volumeQueue.Add(string(name))
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package localprovisioner makes and deletes the persistent volumes of storage.mortise.dev, the driver that each real node runs. When the
// first node with the driver is there, the controller also creates the CSIDriver and the StorageClass local, the default of the cluster
// unless another class is. It creates them again only if the CSIDriver is deleted.
//
// A volume is a directory of one node: the one that the scheduler has chosen for the claim's first pod or, for a class that binds at once,
// any node with the driver. The controller only creates the PersistentVolume; the node makes the directory when it publishes the volume.
//
// The directory goes when the PersistentVolume is released. Nodes may not read persistent volumes of which they have no pods, so the
// controller says it in an annotation of the Node, and the node answers in another one:
//
//	controller   Node: storage.mortise.dev/delete=ID
//	node         removes the directory; Node: storage.mortise.dev/deleted=ID
//	controller   deletes the PersistentVolume; Node: storage.mortise.dev/delete without ID
//	node         Node: storage.mortise.dev/deleted without ID
//
// The volumes of a node that is gone are deleted without it.
package localprovisioner

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// The names are those of the driver (internal/agent/localstorage).
const (
	driver      = "storage.mortise.dev"
	topologyKey = "topology.storage.mortise.dev/node"
	lazy        = "storage.mortise.dev/lazy"
	sizeKey     = "storage.mortise.dev/size"
	toDelete    = "storage.mortise.dev/delete"
	deleted     = "storage.mortise.dev/deleted"

	// ClassName is the StorageClass.
	ClassName = "local"

	finalizer        = "external-provisioner.volume.kubernetes.io/finalizer"
	provisionedBy    = "pv.kubernetes.io/provisioned-by"
	provisioner      = "volume.kubernetes.io/storage-provisioner"
	selectedNode     = "volume.kubernetes.io/selected-node"
	isDefault        = "storageclass.kubernetes.io/is-default-class"
	mostAtOnce       = 500 // IDs in an annotation
	reasonFailed     = "ProvisioningFailed"
	reasonSuccessful = "ProvisioningSucceeded"
)

// Name selects the controller.
const Name = "local-volume-provisioner-controller"

// Controller describes the loop.
func Controller() controllers.Controller {
	core, storage := corev1.SchemeGroupVersion.WithResource, storagev1.SchemeGroupVersion.WithResource
	rule := func(group string, resource string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	return controllers.Controller{
		Name: Name, Account: Name, Component: driver,
		Rules: []rbacv1.PolicyRule{
			rule("", "persistentvolumes", "create", "update", "delete"), rule("", "persistentvolumeclaims", "update"),
			rule("", "persistentvolumeclaims/status", "patch"),
			rule("", "nodes", "get", "patch"), rule("", "events", "create", "patch", "update"),
			rule("events.k8s.io", "events", "create", "patch", "update"),
			rule("storage.k8s.io", "storageclasses", "create"), rule("storage.k8s.io", "csidrivers", "create"),
		},
		Inputs: []schema.GroupVersionResource{
			core("persistentvolumeclaims"), core("persistentvolumes"), core("nodes"), storage("storageclasses"), storage("csidrivers"),
		},
		Outputs: []schema.GroupVersionResource{
			core("persistentvolumes"), core("persistentvolumeclaims"), core("nodes"), storage("storageclasses"), storage("csidrivers"),
		},
		New: build,
	}
}

// item is what a sync looks at: a claim, a volume, or with neither the objects of the driver.
type item struct{ namespace, claim, volume string }

type controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	clock    clock.PassiveClock
	claims   listers.PersistentVolumeClaimLister
	volumes  listers.PersistentVolumeLister
	nodes    listers.NodeLister
	classes  storagelisters.StorageClassLister
	drivers  storagelisters.CSIDriverLister
	queue    *controllers.Queue[item]
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	core, storage := d.Informers.Core().V1(), d.Informers.Storage().V1()
	c := &controller{
		client: d.Client, recorder: d.Recorder, clock: d.Clock,
		claims: core.PersistentVolumeClaims().Lister(), volumes: core.PersistentVolumes().Lister(),
		nodes: core.Nodes().Lister(), classes: storage.StorageClasses().Lister(), drivers: storage.CSIDrivers().Lister(),
		queue: controllers.NewQueue[item](d, "local_volume_provisioner", 1),
	}
	claim := func(o *corev1.PersistentVolumeClaim) {
		if wanted(o) || grows(o) {
			c.queue.Add(item{namespace: o.Namespace, claim: o.Name})
		}
	}
	volume := func(o *corev1.PersistentVolume) {
		if mine(o) {
			c.queue.Add(item{volume: o.Name})
		}
	}
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), errors.Join(
		controllers.Subscribe(d, core.PersistentVolumeClaims().Informer(), controllers.Handler[*corev1.PersistentVolumeClaim]{
			Add: claim, Update: func(_, o *corev1.PersistentVolumeClaim) { claim(o) },
		}),
		controllers.Subscribe(d, core.PersistentVolumes().Informer(), controllers.Handler[*corev1.PersistentVolume]{
			Add: volume, Update: func(_, o *corev1.PersistentVolume) { volume(o) },
			Delete: func(o *corev1.PersistentVolume) {
				if mine(o) {
					c.queue.Add(item{volume: o.Name}) // the Node still names it
				}
			},
		}),
		controllers.Subscribe(d, core.Nodes().Informer(), controllers.Handler[*corev1.Node]{
			Add: func(o *corev1.Node) { c.nodeChanged(&corev1.Node{}, o) }, Update: c.nodeChanged,
			Delete: func(o *corev1.Node) { c.enqueueVolumes(o.Name) },
		}),
		controllers.Subscribe(d, storage.CSIDrivers().Informer(), controllers.Handler[*storagev1.CSIDriver]{
			Delete: func(o *storagev1.CSIDriver) {
				if o.Name == driver {
					c.queue.Add(item{})
				}
			},
		}),
	)
}

// nodeChanged enqueues what waits for a node.
func (c *controller) nodeChanged(old, node *corev1.Node) {
	if node.Labels[topologyKey] != "" && old.Labels[topologyKey] == "" {
		c.queue.Add(item{})
		c.enqueueClaims()
	}
	if old.Annotations[deleted] != node.Annotations[deleted] {
		c.enqueueVolumes(node.Name)
	}
}

func (c *controller) enqueueClaims() {
	all, err := c.claims.List(labels.Everything())
	if err != nil {
		return
	}
	for _, o := range all {
		if wanted(o) {
			c.queue.Add(item{namespace: o.Namespace, claim: o.Name})
		}
	}
}

func (c *controller) enqueueVolumes(node string) {
	all, err := c.volumes.List(labels.Everything())
	if err != nil {
		return
	}
	for _, o := range all {
		if mine(o) && nodeOf(o) == node {
			c.queue.Add(item{volume: o.Name})
		}
	}
}

func (c *controller) sync(ctx context.Context, i item) error {
	switch {
	case i.claim != "":
		return c.syncClaim(ctx, i)
	case i.volume != "":
		return c.syncVolume(ctx, i.volume)
	}
	return c.ensureObjects(ctx)
}

// ensureObjects creates the CSIDriver and the StorageClass.
func (c *controller) ensureObjects(ctx context.Context) error {
	nodes, err := c.nodes.List(labels.Everything())
	if err != nil {
		return err
	}
	if _, err := c.drivers.Get(driver); err == nil || !apierrors.IsNotFound(err) {
		return err
	}
	there := false
	for _, n := range nodes {
		there = there || n.Labels[topologyKey] != ""
	}
	if !there {
		return nil
	}
	classes, err := c.classes.List(labels.Everything())
	if err != nil {
		return err
	}
	first := "true"
	for _, class := range classes {
		if class.Annotations[isDefault] == "true" {
			first = "false"
		}
	}
	reclaim, mode := corev1.PersistentVolumeReclaimDelete, storagev1.VolumeBindingWaitForFirstConsumer
	_, err = c.client.StorageV1().StorageClasses().Create(ctx, &storagev1.StorageClass{
		ObjectMeta:  metav1.ObjectMeta{Name: ClassName, Annotations: map[string]string{isDefault: first}},
		Provisioner: driver, ReclaimPolicy: &reclaim, VolumeBindingMode: &mode, AllowVolumeExpansion: new(true),
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create StorageClass %s: %w", ClassName, err)
	}
	policy := storagev1.FileFSGroupPolicy
	_, err = c.client.StorageV1().CSIDrivers().Create(ctx, &storagev1.CSIDriver{
		ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: storagev1.CSIDriverSpec{
			AttachRequired: new(false), PodInfoOnMount: new(true), FSGroupPolicy: &policy,
			VolumeLifecycleModes: []storagev1.VolumeLifecycleMode{storagev1.VolumeLifecyclePersistent, storagev1.VolumeLifecycleEphemeral},
		},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create CSIDriver %s: %w", driver, err)
	}
	return nil
}

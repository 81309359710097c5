// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package volumebinder binds claims to volumes, and sets the phase of both.
//
// The controller binds a claim that names no volume to the smallest one that satisfies it (claim.go), unless the claim's class waits for
// the first consumer: then the scheduler chooses. If no volume fits, and the class has an external provisioner, the controller annotates
// the claim for it. It releases a volume whose claim was deleted; the volume's provisioner handles it from then on (volume.go).
//
// Binding is four writes (bind.go), each of which may be the last before a crash: the volume's claimRef, its phase, the claim's volumeName,
// its phase. The next sync continues from there. One worker syncs all keys, so that it offers a volume to one claim at a time. The cache
// may be stale, since each write is conditional on the version that was read.
//
// When the claim of a hostPath volume is deleted, the controller may delete the volume's directory (reclaim.go), or have a pod empty it
// (recycle.go). Volumes and claims of
// former in-tree drivers get annotations for the CSI drivers that replaced them (migration.go).
package volumebinder

import (
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/component-helpers/storage/volume"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// Controller describes the loop.
func Controller() controllers.Controller {
	volumes, claims := corev1.SchemeGroupVersion.WithResource("persistentvolumes"),
		corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	pods := corev1.SchemeGroupVersion.WithResource("pods")
	s := defaults()
	return controllers.Controller{
		Name:    "persistentvolume-binder-controller",
		Account: "persistent-volume-binder", Component: "persistentvolume-controller",
		Inputs: []schema.GroupVersionResource{volumes, claims, storagev1.SchemeGroupVersion.WithResource("storageclasses"),
			pods},
		Outputs:  []schema.GroupVersionResource{volumes, claims, pods},
		Settings: s.declare(),
		Check:    func(*controllers.Cluster) error { return s.check() },
		New:      func(d *controllers.Deps) (controllers.Runner, error) { return build(d, s) },
	}
}

// Names of the indexes: volumes by class, and claims by the class or volume that they wait for.
const (
	byClass = "storageclass"
	byWait  = "volume or class"
)

type controller struct {
	client    kubernetes.Interface
	recorder  record.EventRecorder
	volumes   corelisters.PersistentVolumeLister
	claims    corelisters.PersistentVolumeClaimLister
	classes   storagelisters.StorageClassLister
	free      cache.Indexer // volumes, by class and by the claim that they name
	waiting   cache.Indexer // claims by what they wait for
	pods      cache.Indexer
	meters    *meters
	migrator  migrator
	reclaimer *reclaimer
	recycler  *recycler
	queue     *controllers.Queue[types.NamespacedName]

	told map[types.NamespacedName]string // the last event of each waiting claim; only the worker uses it
}

func build(d *controllers.Deps, s *settings) (controllers.Runner, error) {
	core, classes := d.Informers.Core().V1(), d.Informers.Storage().V1().StorageClasses()
	volumes, claims, pods := core.PersistentVolumes(), core.PersistentVolumeClaims(), core.Pods()
	c := &controller{
		client: d.Client, recorder: d.Recorder, volumes: volumes.Lister(), claims: claims.Lister(), classes: classes.Lister(),
		free: volumes.Informer().GetIndexer(), waiting: claims.Informer().GetIndexer(),
		pods: pods.Informer().GetIndexer(), migrator: migrator{d.Client}, told: map[types.NamespacedName]string{},
		queue: controllers.NewQueue[types.NamespacedName](d, "volumes", 1),
	}
	var err error
	c.meters, err = newMeters(d, c)
	c.reclaimer = &reclaimer{client: d.Client, recorder: d.Recorder, meters: c.meters, scratch: scratch}
	c.recycler = newRecycler(d.Client, d.Recorder)
	c.recycler.pods, c.recycler.claims, c.recycler.settings = c.pods, c.claims, s
	err = errors.Join(err,
		workload.IndexByPersistentVolumeClaim(pods.Informer()),
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{
			Add: c.podHeard,
			Update: func(before, updated *corev1.Pod) {
				if waiting(before) != waiting(updated) || over(before) != over(updated) {
					c.podHeard(updated)
				}
			},
			Delete: c.podHeard,
		}),
		controllers.Index(volumes.Informer(), byClass, func(obj any) ([]string, error) {
			if pv, ok := obj.(*corev1.PersistentVolume); ok {
				out := []string{ofClass(volume.GetPersistentVolumeClass(pv))}
				if ref := pv.Spec.ClaimRef; ref != nil {
					out = append(out, ofClaim(ref.Namespace, ref.Name))
				}
				return out, nil
			}
			return nil, nil
		}),
		controllers.Index(claims.Informer(), byWait, func(obj any) ([]string, error) {
			if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok {
				return []string{waitsFor(claim)}, nil
			}
			return nil, nil
		}),
		controllers.Subscribe(d, volumes.Informer(), controllers.OnAny(c.volumeHeard)),
		controllers.Subscribe(d, claims.Informer(), controllers.OnAny(c.claimHeard)),
		controllers.Subscribe(d, classes.Informer(), controllers.Handler[*storagev1.StorageClass]{
			Add: c.classHeard, Update: func(_, updated *storagev1.StorageClass) { c.classHeard(updated) },
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error {
		ctx, cancel := context.WithCancel(ctx)
		defer c.recycler.watchers.Wait()
		defer cancel()
		return c.queue.Run(ctx, c.sync)
	}), err
}

func ofVolume(name string) string { return "volume " + name }
func ofClass(name string) string  { return "class " + name }

func ofClaim(namespace, name string) string { return "claim " + namespace + "/" + name }

// waitsFor returns what a claim waits for: its volume, or any volume of its class.
func waitsFor(claim *corev1.PersistentVolumeClaim) string {
	if claim.Spec.VolumeName != "" {
		return ofVolume(claim.Spec.VolumeName)
	}
	return ofClass(volume.GetPersistentVolumeClaimClass(claim))
}

func (c *controller) volumeHeard(pv *corev1.PersistentVolume) {
	c.queue.Add(types.NamespacedName{Name: pv.Name})
	c.wake(ofVolume(pv.Name))
	if ref := pv.Spec.ClaimRef; ref != nil {
		c.queue.Add(types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name})
	} else {
		c.wake(ofClass(volume.GetPersistentVolumeClass(pv)))
	}
}

func (c *controller) claimHeard(claim *corev1.PersistentVolumeClaim) {
	c.queue.Add(controllers.Key(claim))
	if claim.Spec.VolumeName != "" {
		c.queue.Add(types.NamespacedName{Name: claim.Spec.VolumeName})
	}
	c.wakeNaming(claim.Namespace, claim.Name)
}

// podHeard enqueues the claims of a pod that wait for a volume: their events name the pods. It enqueues the volume that a pod empties,
// and those that are emptied when the pod is over.
func (c *controller) podHeard(pod *corev1.Pod) {
	if name, ok := strings.CutPrefix(pod.Name, recyclerName); ok {
		c.queue.Add(types.NamespacedName{Name: name})
	}
	for i := range pod.Spec.Volumes {
		name := workload.ClaimName(pod, &pod.Spec.Volumes[i])
		if name == "" {
			continue
		}
		claim, err := c.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
		if err == nil && claim.Spec.VolumeName == "" {
			c.queue.Add(controllers.Key(claim))
		}
		if err != nil && over(pod) {
			c.wakeNaming(pod.Namespace, name)
		}
	}
}

// wakeNaming enqueues the volumes that name a claim, which may be gone, or be bound to another volume.
func (c *controller) wakeNaming(namespace, claim string) {
	found, err := c.free.ByIndex(byClass, ofClaim(namespace, claim))
	if err != nil {
		return // the index exists, since the constructor added it
	}
	for _, f := range found {
		if pv, ok := f.(*corev1.PersistentVolume); ok {
			c.queue.Add(types.NamespacedName{Name: pv.Name})
		}
	}
}

func (c *controller) classHeard(class *storagev1.StorageClass) {
	c.wake(ofClass(class.Name))
	if isDefault(class) {
		c.wake(ofClass(""))
	}
}

// wake enqueues the claims that wait for something.
func (c *controller) wake(what string) {
	found, err := c.waiting.ByIndex(byWait, what)
	if err != nil {
		return // the index exists, since the constructor added it
	}
	for _, f := range found {
		if claim, ok := f.(*corev1.PersistentVolumeClaim); ok {
			c.queue.Add(controllers.Key(claim))
		}
	}
}

// sync syncs a claim or, if the key has no namespace, a volume. An event or the queue brings the key back after a write or an error.
func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	if key.Namespace == "" {
		pv, err := c.volumes.Get(key.Name)
		if apierrors.IsNotFound(err) {
			return c.recycler.finish(ctx, key.Name)
		} else if err != nil {
			return fmt.Errorf("get volume: %w", err)
		}
		if pv, err = c.migrator.volume(ctx, pv); err != nil {
			return err
		}
		if c.recycler.empties(pv) { // it goes on, whatever becomes of the volume meanwhile
			if err := c.recycle(ctx, pv); err != nil || !c.recycler.empties(pv) {
				return err
			}
		}
		return c.volume(ctx, pv)
	}
	claim, err := c.claims.PersistentVolumeClaims(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		delete(c.told, key)
		return nil
	} else if err != nil {
		return fmt.Errorf("get claim: %w", err)
	}
	if claim, err = c.migrator.claim(ctx, claim); err != nil {
		return err
	}
	if _, ok := claim.Annotations[volume.AnnBindCompleted]; ok {
		delete(c.told, key)
		return c.boundClaim(ctx, claim)
	}
	if claim.Spec.VolumeName != "" {
		return c.namingClaim(ctx, claim)
	}
	return c.openClaim(ctx, claim)
}

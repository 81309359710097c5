// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package volumeprotection protects volumes and classes in use: a deleted PersistentVolume stays while it is bound, and a deleted
// VolumeAttributesClass while any volume or claim names it. Both get a finalizer for this when they are created, or from this controller.
//
// [Volumes] and [AttributesClasses] are the two loops; package claimprotection does the same for claims.
package volumeprotection

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"

	"github.com/mortise-dev/mortise/internal/controllers"
)

var (
	volumes = corev1.SchemeGroupVersion.WithResource("persistentvolumes")
	claims  = corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	classes = storagev1.SchemeGroupVersion.WithResource("volumeattributesclasses")
)

// Volumes describes the loop that protects volumes.
func Volumes() controllers.Controller {
	return controllers.Controller{
		Name:    "persistentvolume-protection-controller",
		Account: "pv-protection-controller",
		Inputs:  []schema.GroupVersionResource{volumes},
		Outputs: []schema.GroupVersionResource{volumes},
		New: func(d *controllers.Deps) (controllers.Runner, error) {
			informer := d.Informers.Core().V1().PersistentVolumes()
			p := protection[*corev1.PersistentVolume]{
				finalizer: "kubernetes.io/pv-protection", get: informer.Lister().Get,
				used:   func(v *corev1.PersistentVolume) (bool, error) { return v.Status.Phase == corev1.VolumeBound, nil },
				update: d.Client.CoreV1().PersistentVolumes().Update,
			}
			return p.watch(d, "pvprotection", informer.Informer())
		},
	}
}

// byClass is the index of volumes and claims by the VolumeAttributesClass that they name.
const byClass = "class"

// AttributesClasses describes the loop that protects classes.
func AttributesClasses() controllers.Controller {
	return controllers.Controller{
		Name:    "volumeattributesclass-protection-controller",
		Account: "volumeattributesclass-protection-controller",
		Inputs:  []schema.GroupVersionResource{volumes, claims, classes},
		Outputs: []schema.GroupVersionResource{classes},
		New: func(d *controllers.Deps) (controllers.Runner, error) {
			informer := d.Informers.Storage().V1().VolumeAttributesClasses()
			volumes, claims := d.Informers.Core().V1().PersistentVolumes().Informer(), d.Informers.Core().V1().PersistentVolumeClaims().Informer()
			p := protection[*storagev1.VolumeAttributesClass]{
				finalizer: "kubernetes.io/vac-protection", get: informer.Lister().Get,
				used: func(c *storagev1.VolumeAttributesClass) (bool, error) {
					of, err := volumes.GetIndexer().IndexKeys(byClass, c.Name)
					if err != nil || len(of) > 0 {
						return true, err
					}
					of, err = claims.GetIndexer().IndexKeys(byClass, c.Name)
					return len(of) > 0, err
				},
				update: d.Client.StorageV1().VolumeAttributesClasses().Update,
			}
			runner, err := p.watch(d, "vacprotection", informer.Informer())
			return runner, errors.Join(err,
				controllers.Index(volumes, byClass, func(obj any) ([]string, error) { return namedBy(obj), nil }),
				controllers.Index(claims, byClass, func(obj any) ([]string, error) { return namedBy(obj), nil }),
				controllers.Subscribe(d, volumes, leaving(p.queue, func(v *corev1.PersistentVolume) []string { return namedBy(v) })),
				controllers.Subscribe(d, claims, leaving(p.queue, func(c *corev1.PersistentVolumeClaim) []string { return namedBy(c) })),
			)
		},
	}
}

// namedBy returns the classes that a volume or claim names.
func namedBy(obj any) []string {
	var names []string
	add := func(name *string) {
		if name != nil && *name != "" && !slices.Contains(names, *name) {
			names = append(names, *name)
		}
	}
	switch o := obj.(type) {
	case *corev1.PersistentVolume:
		add(o.Spec.VolumeAttributesClassName)
	case *corev1.PersistentVolumeClaim:
		add(o.Spec.VolumeAttributesClassName)
		add(o.Status.CurrentVolumeAttributesClassName)
		if m := o.Status.ModifyVolumeStatus; m != nil {
			add(&m.TargetVolumeAttributesClassName)
		}
	}
	return names
}

// leaving enqueues the names that an updated or deleted object names no more.
func leaving[T metav1.Object](queue *controllers.Queue[string], named func(T) []string) controllers.Handler[T] {
	return controllers.Handler[T]{
		Update: func(before, now T) {
			still := named(now)
			for _, name := range named(before) {
				if !slices.Contains(still, name) {
					queue.Add(name)
				}
			}
		},
		Delete: func(o T) {
			for _, name := range named(o) {
				queue.Add(name)
			}
		},
	}
}

// object is a type of object that can be copied.
type object[T any] interface {
	metav1.Object
	DeepCopy() T
}

// protection keeps a finalizer on objects of one kind, until they are deleted and unused.
type protection[T object[T]] struct {
	finalizer string
	get       func(name string) (T, error)
	used      func(T) (bool, error)
	update    func(context.Context, T, metav1.UpdateOptions) (T, error)
	queue     *controllers.Queue[string]
}

func (p *protection[T]) watch(d *controllers.Deps, queue string, informer cache.SharedIndexInformer) (controllers.Runner, error) {
	p.queue = controllers.NewQueue[string](d, queue, 1)
	look := func(o T) {
		if (o.GetDeletionTimestamp() == nil) != slices.Contains(o.GetFinalizers(), p.finalizer) {
			p.queue.Add(o.GetName())
		}
	}
	err := controllers.Subscribe(d, informer, controllers.Handler[T]{Add: look, Update: func(_, now T) { look(now) }})
	return controllers.RunnerFunc(func(ctx context.Context) error { return p.queue.Run(ctx, p.sync) }), err
}

func (p *protection[T]) sync(ctx context.Context, name string) error {
	o, err := p.get(name)
	if apierrors.IsNotFound(err) {
		return nil
	} else if err != nil {
		return fmt.Errorf("get object: %w", err)
	}
	at := slices.Index(o.GetFinalizers(), p.finalizer)
	changed := o.DeepCopy()
	switch {
	case o.GetDeletionTimestamp() == nil && at < 0:
		changed.SetFinalizers(append(changed.GetFinalizers(), p.finalizer))
	case o.GetDeletionTimestamp() != nil && at >= 0:
		if used, err := p.used(o); err != nil || used {
			return err
		}
		changed.SetFinalizers(slices.Delete(changed.GetFinalizers(), at, at+1))
	default:
		return nil
	}
	if _, err := p.update(ctx, changed, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("update finalizers: %w", err)
	}
	return nil
}

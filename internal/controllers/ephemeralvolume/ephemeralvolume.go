// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package ephemeralvolume makes the PersistentVolumeClaims of pods that have a volume with a claim template. A claim is
// called POD-VOLUME and is owned by the pod, so that the garbage collector deletes it with the pod. The controller leaves a claim of
// that name with another owner alone, and records an event on the pod.
package ephemeralvolume

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// Controller describes the loop.
func Controller() controllers.Controller {
	claims := corev1.SchemeGroupVersion.WithResource("persistentvolumeclaims")
	return controllers.Controller{
		Name:      "ephemeral-volume-controller",
		Account:   "ephemeral-volume-controller",
		Component: "ephemeral_volume",
		Inputs:    []schema.GroupVersionResource{corev1.SchemeGroupVersion.WithResource("pods"), claims},
		Outputs:   []schema.GroupVersionResource{claims},
		Syncs:     &controllers.Syncs{Flag: "concurrent-ephemeralvolume-syncs", Default: 5},
		New:       build,
	}
}

type controller struct {
	client   kubernetes.Interface
	recorder record.EventRecorder
	pods     listers.PodLister
	claims   listers.PersistentVolumeClaimLister
	queue    *controllers.Queue[types.NamespacedName]

	tries, failures prometheus.Counter // of created claims; upstream's names
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	pods, claims := d.Informers.Core().V1().Pods(), d.Informers.Core().V1().PersistentVolumeClaims()
	c := &controller{
		client: d.Client, recorder: d.Recorder, pods: pods.Lister(), claims: claims.Lister(),
		queue: controllers.NewQueue[types.NamespacedName](d, "ephemeral_volume", d.Syncs()),
	}
	var unkept error
	counter := func(name, help string) prometheus.Counter {
		return controllers.Keep(d.Metrics, &unkept, prometheus.NewCounterVec(
			prometheus.CounterOpts{Subsystem: "ephemeral_volume_controller", Name: name, Help: help}, nil)).WithLabelValues()
	}
	c.tries = counter("create_total", "Requests to create a PersistentVolumeClaim.")
	c.failures = counter("create_failures_total", "Requests to create a PersistentVolumeClaim that failed.")
	err := errors.Join(
		unkept,
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{
			Add: func(pod *corev1.Pod) {
				if pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Spec.Volumes, templated) {
					c.queue.Add(controllers.Key(pod))
				}
			},
		}),
		// When a claim is deleted, its pod gets a new one; so does a pod for which another's claim had the name.
		controllers.Subscribe(d, claims.Informer(), controllers.Handler[*corev1.PersistentVolumeClaim]{Delete: c.claimGone}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

func templated(v corev1.Volume) bool {
	return v.Ephemeral != nil && v.Ephemeral.VolumeClaimTemplate != nil
}

// claimGone enqueues the pods that may want a claim of that name: those whose own name is its prefix.
func (c *controller) claimGone(claim *corev1.PersistentVolumeClaim) {
	for i, letter := range claim.Name {
		if letter != '-' {
			continue
		}
		pod, err := c.pods.Pods(claim.Namespace).Get(claim.Name[:i])
		if err == nil && slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return templated(v) && v.Name == claim.Name[i+1:] }) {
			c.queue.Add(controllers.Key(pod))
		}
	}
}

func (c *controller) sync(ctx context.Context, key types.NamespacedName) error {
	pod, err := c.pods.Pods(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) || err == nil && pod.DeletionTimestamp != nil {
		return nil
	} else if err != nil {
		return fmt.Errorf("get pod: %w", err)
	}
	for i := range pod.Spec.Volumes {
		if v := &pod.Spec.Volumes[i]; templated(*v) {
			if err := c.provide(ctx, pod, v); err != nil {
				c.recorder.Eventf(pod, corev1.EventTypeWarning, "FailedBinding", "ephemeral volume %s: %v", v.Name, err)
				return fmt.Errorf("ephemeral volume %s: %w", v.Name, err)
			}
		}
	}
	return nil
}

// provide creates the claim of a volume unless it exists.
func (c *controller) provide(ctx context.Context, pod *corev1.Pod, v *corev1.Volume) error {
	name := pod.Name + "-" + v.Name
	have, err := c.claims.PersistentVolumeClaims(pod.Namespace).Get(name)
	switch {
	case err == nil && !metav1.IsControlledBy(have, pod):
		// upstream's words
		return fmt.Errorf("PVC %s/%s was not created for pod %s/%s (pod is not owner)", have.Namespace, name, pod.Namespace, pod.Name)
	case err == nil:
		return nil
	case !apierrors.IsNotFound(err):
		return err
	}
	c.tries.Inc()
	template := v.Ephemeral.VolumeClaimTemplate.DeepCopy()
	_, err = c.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Labels: template.Labels, Annotations: template.Annotations,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: template.Spec,
	}, metav1.CreateOptions{})
	if err != nil {
		c.failures.Inc()
		return fmt.Errorf("create PVC %s: %w", name, err)
	}
	return nil
}

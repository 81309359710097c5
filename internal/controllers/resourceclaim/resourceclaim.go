// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package resourceclaim makes the ResourceClaims of pods that ask for them by a template, and frees unused claims.
//
// The pod owns the claim that is created for it, and names the claim in its status. The controller deletes the claim when the pod will not
// run any more, even if the pod itself stays. It removes finished and deleted pods from any claim's reservedFor; with the last pod it
// removes the allocation and the finalizer that came with it, so that other pods can use the devices. For a pod that got its node without
// the scheduler, it reserves the claims.
//
// A key names a pod or a claim ([key]). A pure function decides about a claim ([release] in release.go).
package resourceclaim

import (
	"context"
	"errors"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	listers "k8s.io/client-go/listers/resource/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// Controller describes the loop.
func Controller() controllers.Controller {
	pods, claims := corev1.SchemeGroupVersion.WithResource("pods"), resourcev1.SchemeGroupVersion.WithResource("resourceclaims")
	return controllers.Controller{
		Name:      "resourceclaim-controller",
		Account:   "resource-claim-controller",
		Component: "resource_claim",
		Inputs:    []schema.GroupVersionResource{pods, claims, resourcev1.SchemeGroupVersion.WithResource("resourceclaimtemplates")},
		Outputs:   []schema.GroupVersionResource{pods, claims},
		Syncs:     &controllers.Syncs{Flag: "concurrent-resourceclaim-syncs", Default: 50},
		New:       build,
	}
}

// Names of the indexes of pods: by the claims that they use, and by the templates that they name.
const byClaim, byTemplate = "resourceClaim", "resourceClaimTemplate"

// key names a pod or a claim.
type key struct {
	claim bool
	types.NamespacedName
}

type controller struct {
	client    kubernetes.Interface
	recorder  record.EventRecorder
	pods      corelisters.PodLister
	podIndex  cache.Indexer
	claims    listers.ResourceClaimLister
	owned     cache.Indexer // claims by controller
	templates listers.ResourceClaimTemplateLister
	queue     *controllers.Queue[key]

	mu sync.Mutex
	// made are the claims that were made for pods whose status may not name them yet: the cache may not know them either.
	made map[types.UID]map[string]string
}

func build(d *controllers.Deps) (controllers.Runner, error) {
	pods, v1 := d.Informers.Core().V1().Pods(), d.Informers.Resource().V1()
	claims, templates := v1.ResourceClaims(), v1.ResourceClaimTemplates()
	c := &controller{
		client: d.Client, recorder: d.Recorder, pods: pods.Lister(), podIndex: pods.Informer().GetIndexer(),
		claims: claims.Lister(), owned: claims.Informer().GetIndexer(), templates: templates.Lister(),
		queue: controllers.NewQueue[key](d, "resource_claim", d.Syncs()), made: map[types.UID]map[string]string{},
	}
	err := errors.Join(
		controllers.Index(pods.Informer(), byClaim, func(obj any) ([]string, error) {
			if pod, ok := obj.(*corev1.Pod); ok {
				return Used(pod), nil
			}
			return nil, nil
		}),
		controllers.Index(pods.Informer(), byTemplate, func(obj any) ([]string, error) {
			if pod, ok := obj.(*corev1.Pod); ok {
				return named(pod), nil
			}
			return nil, nil
		}),
		workload.IndexByController(claims.Informer()),
		controllers.Subscribe(d, pods.Informer(), controllers.Handler[*corev1.Pod]{
			Add: c.podCame, Update: func(_, updated *corev1.Pod) { c.podCame(updated) }, Delete: c.podWent,
		}),
		controllers.Subscribe(d, claims.Informer(), controllers.Handler[*resourcev1.ResourceClaim]{
			Add: c.claimCame, Update: func(_, updated *resourcev1.ResourceClaim) { c.claimCame(updated) },
			Delete: func(claim *resourcev1.ResourceClaim) { c.wakePods(byClaim, claim) },
		}),
		controllers.Subscribe(d, templates.Informer(), controllers.Handler[*resourcev1.ResourceClaimTemplate]{
			Add:    func(t *resourcev1.ResourceClaimTemplate) { c.wakePods(byTemplate, t) },
			Update: func(_, updated *resourcev1.ResourceClaimTemplate) { c.wakePods(byTemplate, updated) },
		}),
	)
	return controllers.RunnerFunc(func(ctx context.Context) error { return c.queue.Run(ctx, c.sync) }), err
}

// Used returns the keys of the claims that a pod uses, as far as the pod names them.
func Used(pod *corev1.Pod) []string {
	var keys []string
	for i := range pod.Spec.ResourceClaims {
		if name, _, err := Name(pod, &pod.Spec.ResourceClaims[i]); err == nil && name != "" {
			keys = append(keys, pod.Namespace+"/"+name)
		}
	}
	return keys
}

// named returns the templates that a pod names.
func named(pod *corev1.Pod) []string {
	var keys []string
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimTemplateName != nil {
			keys = append(keys, pod.Namespace+"/"+*c.ResourceClaimTemplateName)
		}
	}
	return keys
}

func (c *controller) podCame(pod *corev1.Pod) {
	if len(pod.Spec.ResourceClaims) == 0 && pod.Status.ExtendedResourceClaimStatus == nil {
		return
	}
	switch {
	case done(pod):
		c.free(pod)
	case pod.DeletionTimestamp == nil:
		c.queue.Add(key{false, controllers.Key(pod)})
	}
}

func (c *controller) podWent(pod *corev1.Pod) {
	c.free(pod)
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.made, pod.UID)
}

// free enqueues the claims of a pod that needs them no more. The scheduler creates those for extended resources.
func (c *controller) free(pod *corev1.Pod) {
	for i := range pod.Spec.ResourceClaims {
		if name, _, err := Name(pod, &pod.Spec.ResourceClaims[i]); err == nil && name != "" {
			c.queue.Add(key{true, types.NamespacedName{Namespace: pod.Namespace, Name: name}})
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		c.queue.Add(key{true, types.NamespacedName{Namespace: pod.Namespace, Name: s.ResourceClaimName}})
	}
}

func (c *controller) claimCame(claim *resourcev1.ResourceClaim) {
	c.queue.Add(key{true, controllers.Key(claim)})
	c.wakePods(byClaim, claim)
}

// wakePods enqueues the pods that an index has for o.
func (c *controller) wakePods(index string, o metav1.Object) {
	found, err := c.podIndex.ByIndex(index, o.GetNamespace()+"/"+o.GetName())
	if err != nil {
		return // the index exists
	}
	for _, obj := range found {
		if pod, ok := obj.(*corev1.Pod); ok {
			c.podCame(pod)
		}
	}
}

func (c *controller) sync(ctx context.Context, k key) error {
	if k.claim {
		return c.syncClaim(ctx, k.NamespacedName)
	}
	return c.syncPod(ctx, k.NamespacedName)
}

// errNotMade reports that a template's claim is not created yet.
var errNotMade = errors.New("ResourceClaim not created yet")

// Name returns the name of a pod's claim, and whether the pod must own it. The name is "" if the pod turned out to need no claim.
func Name(pod *corev1.Pod, c *corev1.PodResourceClaim) (name string, own bool, err error) {
	switch {
	case c.ResourceClaimName != nil:
		return *c.ResourceClaimName, false, nil
	case c.ResourceClaimTemplateName != nil:
		for _, s := range pod.Status.ResourceClaimStatuses {
			if s.Name == c.Name {
				if s.ResourceClaimName == nil {
					return "", false, nil
				}
				return *s.ResourceClaimName, true, nil
			}
		}
		return "", false, fmt.Errorf("pod %q: %w", pod.Namespace+"/"+pod.Name, errNotMade)
	}
	return "", false, fmt.Errorf("pod %q, spec.resourceClaim %q: neither a claim nor a template", pod.Namespace+"/"+pod.Name, c.Name)
}

func (c *controller) syncPod(ctx context.Context, at types.NamespacedName) error {
	pod, err := c.pods.Pods(at.Namespace).Get(at.Name)
	if apierrors.IsNotFound(err) || err == nil && (pod.DeletionTimestamp != nil || done(pod)) {
		return nil // the claim of a finished pod is deleted and must not be created again
	} else if err != nil {
		return fmt.Errorf("get pod: %w", err)
	}
	names := map[string]string{}
	for i := range pod.Spec.ResourceClaims {
		podClaim := &pod.Spec.ResourceClaims[i]
		name, err := c.provide(ctx, pod, podClaim)
		if err != nil {
			c.recorder.Eventf(pod, corev1.EventTypeWarning, "FailedResourceClaimCreation", "PodResourceClaim %s: %v", podClaim.Name, err)
			return fmt.Errorf("claim %s: %w", podClaim.Name, err)
		}
		if name != "" {
			names[podClaim.Name] = name
		}
	}
	if len(names) > 0 {
		if err := c.note(ctx, pod, names); err != nil {
			return err
		}
	}
	if pod.Spec.NodeName == "" {
		return nil // the scheduler reserves the claims
	}
	for i := range pod.Spec.ResourceClaims {
		if err := c.reserve(ctx, pod, &pod.Spec.ResourceClaims[i]); err != nil {
			return err
		}
	}
	return nil
}

// reserve adds a pod with a node to the users of an allocated claim.
func (c *controller) reserve(ctx context.Context, pod *corev1.Pod, podClaim *corev1.PodResourceClaim) error {
	name, own, err := Name(pod, podClaim)
	if errors.Is(err, errNotMade) || err == nil && name == "" {
		return nil // the update of the pod's status will enqueue it
	} else if err != nil {
		return err
	}
	claim, err := c.claims.ResourceClaims(pod.Namespace).Get(name)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return fmt.Errorf("get claim: %w", err)
	case own && !workload.Controlled(claim, pod):
		// upstream's words
		return fmt.Errorf("ResourceClaim %s/%s was not created for pod %s/%s (pod is not owner)", claim.Namespace, claim.Name, pod.Namespace,
			pod.Name)
	case claim.Status.Allocation == nil || reservedFor(claim, pod) ||
		len(claim.Status.ReservedFor) >= resourcev1.ResourceClaimReservedForMaxSize:
		return nil
	}
	claim = claim.DeepCopy()
	claim.Status.ReservedFor = append(claim.Status.ReservedFor,
		resourcev1.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	if _, err := c.client.ResourceV1().ResourceClaims(claim.Namespace).UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("reserve claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package dynamicresources

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/util/retry"
	resourcehelper "k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/mortise-dev/mortise/internal/scheduler/devices"
	"github.com/mortise-dev/mortise/internal/scheduler/nodeinfo"
)

// unmade is the name of the claim for extended resources before it is created; no stored claim can have this name.
const unmade = "<extended-resources>"

// asksForExtended reports whether any container requests a resource that a DeviceClass may back.
func asksForExtended(pod *corev1.Pod) bool {
	for _, list := range [...][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			for name := range list[i].Resources.Requests {
				if nodeinfo.IsExtended(name) {
					return true
				}
			}
		}
	}
	return false
}

// addExtended adds the claim for the pod's extended resources that DeviceClasses back: the one that an earlier attempt has created, or one
// to be created, whose requests differ by node.
func (p *plugin) addExtended(pod *corev1.Pod, s *state) error {
	if !asksForExtended(pod) {
		return nil
	}
	requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
	if !p.backs(requests) {
		return nil
	}
	s.scalars, s.extended = nodeinfo.NewResource(requests).Scalar, true
	all, err := p.devices.ResourceClaims().List()
	if err != nil {
		return err
	}
	for _, claim := range all {
		if owner := metav1.GetControllerOfNoCopy(claim); claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] == "true" &&
			owner != nil && owner.UID == pod.UID {
			s.claims, s.initial = append(s.claims, claim), claim.UID
			return nil
		}
	}
	yes := true
	s.initial = uuid.NewUUID()
	s.claims = append(s.claims, &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: pod.Namespace, Name: unmade, GenerateName: pod.Name + "-extended-resources-", UID: s.initial,
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: &yes}},
		Annotations:     map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
	}})
	return nil
}

// backs reports whether DeviceClasses back any of the requests.
func (p *plugin) backs(requests corev1.ResourceList) bool {
	for name, q := range requests {
		if !q.IsZero() && p.classOf(name) != nil {
			return true
		}
	}
	return false
}

// classOf returns the DeviceClass that backs a resource, or nil.
func (p *plugin) classOf(name corev1.ResourceName) *resourcev1.DeviceClass {
	if !nodeinfo.IsExtended(name) {
		return nil
	}
	return p.devices.DeviceClassResolver().GetDeviceClass(name)
}

// extendedOn returns the claim for extended resources as the node needs it, and which container has which request; nil if the node has all
// resources without it.
func (p *plugin) extendedOn(s *state, pod *corev1.Pod, info fwk.NodeInfo) (*resourcev1.ResourceClaim,
	[]corev1.ContainerExtendedResourceRequest, *fwk.Status) {
	claim := s.forExtended()
	if claim == nil {
		return nil, nil, nil
	}
	if claim.ResourceVersion != "" { // an earlier attempt has created it, in vain
		return nil, nil, never("cannot schedule extended resource claim") // upstream's words
	}
	var by []corev1.ResourceName
	for name, n := range s.scalars {
		if n == 0 || !nodeinfo.IsExtended(name) {
			continue
		}
		has, ok := info.GetAllocatable().GetScalarResources()[name]
		switch {
		case has == 0 && p.classOf(name) != nil:
			by = append(by, name)
		case !ok:
			return nil, nil, never("cannot fit resource") // upstream's words
		}
	}
	if len(by) == 0 {
		return nil, nil, nil
	}
	slices.Sort(by)
	claim = claim.DeepCopy()
	var mappings []corev1.ContainerExtendedResourceRequest
	for _, name := range by {
		if class := p.classOf(name); class != nil { // it may have been deleted just now
			r := requestsFor(pod, name, class.Name)
			claim.Spec.Devices.Requests = append(claim.Spec.Devices.Requests, r.requests...)
			mappings = append(mappings, r.mappings...)
		}
	}
	slices.SortFunc(claim.Spec.Devices.Requests, func(a, b resourcev1.DeviceRequest) int { return strings.Compare(a.Name, b.Name) })
	return claim, mappings, nil
}

// bindExtended creates the claim, writes its devices and names it in the pod's status.
func (p *plugin) bindExtended(ctx context.Context, s *state, i int, pod *corev1.Pod, node string) error {
	found := s.on[node]
	if found == nil || found.extended == nil {
		return nil // the node has the resources without it
	}
	if len(found.mappings) == 0 {
		return fmt.Errorf("nil or empty request mappings, no update of pod %s/%s ExtendedResourceClaimStatus", pod.Namespace,
			pod.Name) // upstream's words
	}
	claim := found.extended.DeepCopy()
	claim.Name, claim.UID = "", ""
	claim, err := p.handle.ClientSet().ResourceV1().ResourceClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{})
	p.metrics.ClaimCreated(err)
	if err != nil {
		return fmt.Errorf("create claim for extended resources %v: %w", klog.KObj(found.extended), err) // upstream's words
	}
	s.claims[i] = claim
	if claim, err = p.write(ctx, claim, s.reserved[i], pod); err != nil {
		return err
	}
	s.claims[i] = claim
	if err := p.assume(ctx, claim); err != nil {
		return err
	}
	p.devices.ResourceClaims().MaybeRemoveClaimPendingAllocation(s.initial, true)
	s.reserved[i] = nil
	err = p.patchPod(ctx, pod, map[string]any{"extendedResourceClaimStatus": corev1.PodExtendedResourceClaimStatus{
		RequestMappings: found.mappings, ResourceClaimName: claim.Name,
	}})
	if err != nil {
		return fmt.Errorf("update pod %s/%s ExtendedResourceClaimStatus: %w", pod.Namespace, pod.Name, err) // upstream's words
	}
	return nil
}

// assume assumes a claim that was just created, once an informer has it: its devices are in flight until then.
func (p *plugin) assume(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	for {
		changed := p.changed()
		err := p.devices.ResourceClaims().AssumeClaimAfterAPICall(claim)
		if !errors.Is(err, devices.ErrNotFound) || changed == nil {
			return err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// unreserveExtended deletes the claim at i, if it was created, and then frees its devices.
func (p *plugin) unreserveExtended(ctx context.Context, s *state, i int) {
	if s.claims[i].ResourceVersion != "" {
		if err := p.deleteClaim(ctx, s.claims[i]); err != nil { // the pod's next attempt, or its deletion, does the same
			klog.FromContext(ctx).Error(err, "delete", "resourceclaim", klog.KObj(s.claims[i]))
		}
	}
	if s.reserved[i] != nil {
		p.devices.ResourceClaims().MaybeRemoveClaimPendingAllocation(s.initial, false)
		s.reserved[i] = nil
	}
}

// deleteClaim deletes a claim in any state.
func (p *plugin) deleteClaim(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	client := p.handle.ClientSet().ResourceV1().ResourceClaims(claim.Namespace)
	claim, again := claim.DeepCopy(), false
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		if again {
			newest, err := client.Get(ctx, claim.Name, metav1.GetOptions{})
			if err != nil {
				return fmt.Errorf("get resourceclaim %s/%s: %w", claim.Namespace, claim.Name, err)
			}
			claim = newest
		}
		again = true
		at := slices.Index(claim.Finalizers, resourcev1.Finalizer)
		if at < 0 {
			return nil
		}
		claim.Finalizers = slices.Delete(claim.Finalizers, at, at+1)
		if _, err := client.Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("update resourceclaim %s/%s: %w", claim.Namespace, claim.Name, err)
		}
		return nil
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	if err := client.Delete(ctx, claim.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return err
	}
	return nil
}

// asked is a claim's requests for one extended resource, and which container has which request.
type asked struct {
	requests []resourcev1.DeviceRequest
	mappings []corev1.ContainerExtendedResourceRequest
}

// requestsFor returns the requests for one resource. Each container that runs until the pod's end has a request of its own. An init
// container that ends before those start uses the requests of the later ones; one further request covers the largest shortage.
func requestsFor(pod *corev1.Pod, name corev1.ResourceName, class string) asked {
	containers := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	ends := func(i int) bool {
		r := containers[i].RestartPolicy
		return i < len(pod.Spec.InitContainers) && (r == nil || *r != corev1.ContainerRestartPolicyAlways)
	}
	lasting := make([]*resourcev1.DeviceRequest, len(containers))
	var out asked
	for i := range containers {
		if !ends(i) {
			own := requestOf(i, &containers[i], name, class, nil)
			out.mappings = append(out.mappings, own.mappings...)
			if len(own.requests) > 0 {
				lasting[i] = &own.requests[0]
			}
		}
	}
	var most *resourcev1.DeviceRequest
	var brief []corev1.ContainerExtendedResourceRequest
	missing := map[string]bool{}
	for i := range containers {
		if !ends(i) {
			continue
		}
		own := requestOf(i, &containers[i], name, class, lasting[i:])
		brief = append(brief, own.mappings...)
		if len(own.requests) > 0 {
			missing[own.requests[0].Name] = true
			if most == nil || most.Exactly.Count < own.requests[0].Exactly.Count {
				most = &own.requests[0]
			}
		}
	}
	for i := range brief {
		if missing[brief[i].RequestName] {
			brief[i].RequestName = most.Name
		}
	}
	if most != nil {
		out.requests = append(out.requests, *most)
	}
	for _, r := range lasting {
		if r != nil {
			out.requests = append(out.requests, *r)
		}
	}
	out.mappings = append(out.mappings, brief...)
	return out
}

// requestOf returns the request of the i-th of all containers, after what it may use of others' requests.
func requestOf(i int, c *corev1.Container, name corev1.ResourceName, class string, others []*resourcev1.DeviceRequest) (out asked) {
	q, ok := c.Resources.Requests[name]
	want, whole := q.AsInt64()
	if !ok || !whole || want == 0 {
		return out
	}
	use := func(request string) {
		out.mappings = append(out.mappings, corev1.ContainerExtendedResourceRequest{ContainerName: c.Name, ResourceName: string(name),
			RequestName: request})
	}
	for _, r := range others {
		if r == nil {
			continue
		}
		use(r.Name)
		if want -= r.Exactly.Count; want <= 0 {
			return out
		}
	}
	names := make([]corev1.ResourceName, 0, len(c.Resources.Requests))
	for n := range c.Resources.Requests {
		names = append(names, n)
	}
	slices.Sort(names)
	request := fmt.Sprintf("container-%d-request-%d", i, slices.Index(names, name))
	use(request)
	out.requests = []resourcev1.DeviceRequest{{Name: request, Exactly: &resourcev1.ExactDeviceRequest{
		DeviceClassName: class, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: want,
	}}}
	return out
}

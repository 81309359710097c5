// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package quota

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// deviceClaimEvaluator counts claims of devices, and the devices they may take of each class. A class that stands for an
// extended resource is charged as that too, but for what the pod has been charged that the claim was made for.
type deviceClaimEvaluator struct{ cluster Cluster }

func (deviceClaimEvaluator) Charges(w Write) bool { return w.Subresource == "" }

// mayBeDeviceName: whether it is one is up to the device classes that there are.
func mayBeDeviceName(name corev1.ResourceName) bool {
	return name == CountName(deviceClaims) || strings.HasSuffix(string(name), corev1.ResourceClaimsPerClass) ||
		strings.HasPrefix(string(name), corev1.ResourceImplicitExtendedClaimsPerClass) || isExtendedRequest(name)
}

func (e deviceClaimEvaluator) Names(ctx context.Context, of []corev1.ResourceName) ([]corev1.ResourceName, error) {
	var out []corev1.ResourceName
	var classes []*resourcev1.DeviceClass
	asked := false
	for _, name := range of {
		if !mayBeDeviceName(name) {
			continue
		}
		if name == CountName(deviceClaims) || strings.HasSuffix(string(name), corev1.ResourceClaimsPerClass) {
			out = append(out, name)
			continue
		}
		if !asked {
			var err error
			if classes, err = e.cluster.DeviceClasses(ctx); err != nil {
				return nil, fmt.Errorf("list device classes: %w", err)
			}
			asked = true
		}
		extended := strings.TrimPrefix(string(name), requests)
		for _, c := range classes {
			if extendedName(c) == extended || resourcev1.ResourceDeviceClassPrefix+c.Name == extended {
				out = append(out, name)
				break
			}
		}
	}
	return out, nil
}

func extendedName(c *resourcev1.DeviceClass) string {
	if c.Spec.ExtendedResourceName == nil {
		return ""
	}
	return *c.Spec.ExtendedResourceName
}

func (deviceClaimEvaluator) Requires([]corev1.ResourceName, runtime.Object) error { return nil }

func (deviceClaimEvaluator) Scoped() bool { return false }

func (deviceClaimEvaluator) InScope(corev1.ScopedResourceSelectorRequirement, runtime.Object) (bool, error) {
	return false, nil
}

// Usage is the maximum that a claim may use: of alternatives the most of each class, of "all" as many as can be allocated.
func (e deviceClaimEvaluator) Usage(ctx context.Context, obj runtime.Object) (corev1.ResourceList, error) {
	claim, ok := obj.(*resourcev1.ResourceClaim)
	if !ok {
		return nil, fmt.Errorf("measure claim of devices: it is a %T", obj)
	}
	used := corev1.ResourceList{CountName(deviceClaims): *decimal(1)}
	classes := map[string]int64{}
	for i := range claim.Spec.Devices.Requests {
		switch r := &claim.Spec.Devices.Requests[i]; {
		case len(r.FirstAvailable) > 0:
			most := map[string]int64{}
			for j := range r.FirstAvailable {
				a := &r.FirstAvailable[j]
				if n := devices(a.AllocationMode, a.Count); n > 0 {
					most[a.DeviceClassName] = max(most[a.DeviceClassName], n)
				}
			}
			for class, n := range most {
				classes[class] += n
			}
		case r.Exactly != nil:
			classes[r.Exactly.DeviceClassName] += devices(r.Exactly.AllocationMode, r.Exactly.Count)
		}
	}
	for class, n := range classes {
		used[corev1.ResourceName(class+corev1.ResourceClaimsPerClass)] = *decimal(n)
	}
	if len(classes) == 0 {
		return used, nil
	}
	return used, e.extended(ctx, claim, classes, used)
}

func devices(mode resourcev1.DeviceAllocationMode, count int64) int64 {
	switch mode {
	case resourcev1.DeviceAllocationModeExactCount:
		return count
	case resourcev1.DeviceAllocationModeAll:
		return resourcev1.AllocationResultsMaxSize
	}
	return 0
}

// extended adds what the classes come to as extended resources.
func (e deviceClaimEvaluator) extended(ctx context.Context, claim *resourcev1.ResourceClaim, classes map[string]int64,
	used corev1.ResourceList) error {
	known, err := e.cluster.DeviceClasses(ctx)
	if err != nil {
		return fmt.Errorf("list device classes: %w", err)
	}
	more := corev1.ResourceList{}
	for class, n := range classes {
		if class == "" {
			continue
		}
		more[corev1.ResourceName(corev1.ResourceImplicitExtendedClaimsPerClass+class)] = *decimal(n)
		for _, c := range known {
			if name := extendedName(c); c.Name == class && name != "" {
				more[corev1.ResourceName(requests+name)] = *decimal(n)
			}
		}
	}
	paid, err := e.paid(ctx, claim)
	if err != nil {
		return err
	}
	for name, q := range more {
		if p, ok := paid[name]; ok {
			q.Sub(p)
		}
		if q.Sign() > 0 {
			used[name] = q
		}
	}
	return nil
}

// paid is what the pod has been charged that a claim was made for because it asks for extended resources. Of several claims
// of one pod the first alone has that.
func (e deviceClaimEvaluator) paid(ctx context.Context, claim *resourcev1.ResourceClaim) (corev1.ResourceList, error) {
	owner := madeFor(claim)
	if owner == nil {
		return nil, nil
	}
	pod, err := e.cluster.Pod(ctx, claim.Namespace, owner.Name)
	if err != nil {
		return nil, fmt.Errorf("get pod %s/%s: %w", claim.Namespace, owner.Name, err)
	}
	if pod == nil || pod.UID != owner.UID {
		return nil, nil
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		if s.ResourceClaimName != claim.Name {
			return nil, nil
		}
		return podUsage(pod, e.cluster.Now()), nil
	}
	all, err := e.cluster.DeviceClaims(ctx, claim.Namespace)
	if err != nil {
		return nil, fmt.Errorf("list claims of devices: %w", err)
	}
	for _, other := range all {
		if o := madeFor(other); o == nil || o.UID != owner.UID {
			continue
		}
		if earlier := other.CreationTimestamp.Compare(claim.CreationTimestamp.Time); earlier < 0 || earlier == 0 && other.Name < claim.Name {
			return nil, nil
		}
	}
	return podUsage(pod, e.cluster.Now()), nil
}

// madeFor is the pod that owns a claim which its extended resources need.
func madeFor(claim *resourcev1.ResourceClaim) *metav1.OwnerReference {
	if claim.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" {
		return nil
	}
	if owner := metav1.GetControllerOfNoCopy(claim); owner != nil && owner.Kind == "Pod" && owner.APIVersion == "v1" {
		return owner
	}
	return nil
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resourceclaim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/workload"
)

// provide creates a pod's claim from its template unless it exists. It returns the claim's name if the pod's status lacks it, else "".
func (c *controller) provide(ctx context.Context, pod *corev1.Pod, podClaim *corev1.PodResourceClaim) (string, error) {
	name, own, err := Name(pod, podClaim)
	switch {
	case errors.Is(err, errNotMade):
	case err != nil:
		return "", fmt.Errorf("checking for claim before creating it: %w", err) // upstream's words
	case name == "":
		return "", nil
	default:
		there, err := c.there(ctx, pod, name, own)
		if err != nil {
			return "", fmt.Errorf("checking claim existence: %w", err) // upstream's words
		} else if there {
			return "", nil
		}
	}
	if podClaim.ResourceClaimTemplateName == nil {
		return "", nil
	}
	if name, err := c.orphan(ctx, pod, podClaim.Name); err != nil || name != "" {
		return name, err
	}
	template, err := c.templates.ResourceClaimTemplates(pod.Namespace).Get(*podClaim.ResourceClaimTemplateName)
	if err != nil {
		return "", fmt.Errorf("resource claim template %q: %w", *podClaim.ResourceClaimTemplateName, err) // upstream's words
	}
	made, err := c.client.ResourceV1().ResourceClaims(pod.Namespace).Create(ctx, fill(template, pod, podClaim.Name), metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("create ResourceClaim %s: %w", "", err) // upstream's words, which lack the name too
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.made[pod.UID] == nil {
		c.made[pod.UID] = map[string]string{}
	}
	c.made[pod.UID][podClaim.Name] = made.Name
	return made.Name, nil
}

// there reports whether a claim exists, and whether the pod owns it if it has to. It asks the server if the cache does not know the claim.
func (c *controller) there(ctx context.Context, pod *corev1.Pod, name string, own bool) (bool, error) {
	claim, err := c.claims.ResourceClaims(pod.Namespace).Get(name)
	if apierrors.IsNotFound(err) {
		claim, err = c.client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil && (!own || workload.Controlled(claim, pod)), err
}

// orphan finds a claim that was created for a pod whose status lacks it because the status update failed.
func (c *controller) orphan(ctx context.Context, pod *corev1.Pod, podClaim string) (string, error) {
	mine, err := workload.Children[*resourcev1.ResourceClaim](c.owned, pod, false)
	if err != nil {
		return "", err
	}
	for _, claim := range mine {
		if of, ok := claim.Annotations[resourcev1.PodResourceClaimAnnotation]; ok && of == podClaim {
			return claim.Name, nil
		}
	}
	c.mu.Lock()
	name := c.made[pod.UID][podClaim]
	c.mu.Unlock()
	if name == "" {
		return "", nil
	}
	there, err := c.there(ctx, pod, name, true)
	if err != nil || !there {
		return "", err
	}
	return name, nil
}

// fill returns the claim for a template.
func fill(template *resourcev1.ResourceClaimTemplate, pod *corev1.Pod, podClaim string) *resourcev1.ResourceClaim {
	annotations := maps.Clone(template.Spec.Annotations)
	if annotations == nil {
		annotations = map[string]string{}
	}
	annotations[resourcev1.PodResourceClaimAnnotation] = podClaim
	return &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: prefix(pod.Name, podClaim), Labels: maps.Clone(template.Spec.Labels), Annotations: annotations,
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: new(true)}},
		},
		Spec: *template.Spec.Spec.DeepCopy(),
	}
}

// prefix returns what a claim's name begins with. It shortens both parts in proportion if together they are too long.
func prefix(pod, podClaim string) string {
	const most = 63 - 6 // a hyphen and five random characters follow
	whole := pod + "-" + podClaim + "-"
	if len(whole) <= most {
		return whole
	}
	return pod[:len(pod)*most/len(whole)] + "-" + podClaim[:len(podClaim)*most/len(whole)]
}

// note writes the names of claims into a pod's status.
func (c *controller) note(ctx context.Context, pod *corev1.Pod, names map[string]string) error {
	all := map[string]string{}
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			all[s.Name] = *s.ResourceClaimName
		}
	}
	maps.Copy(all, names)
	var statuses []corev1.PodResourceClaimStatus
	for _, of := range slices.Sorted(maps.Keys(all)) {
		statuses = append(statuses, corev1.PodResourceClaimStatus{Name: of, ResourceClaimName: new(all[of])})
	}
	err := controllers.Apply(ctx, c.client.CoreV1().Pods(pod.Namespace).Patch, "ResourceClaimController", controllers.Applied{
		Kind: corev1.SchemeGroupVersion.WithKind("Pod"), Namespace: pod.Namespace, Name: pod.Name,
		Fields: map[string]any{"status": map[string]any{"resourceClaimStatuses": statuses}},
	}, "status")
	if err != nil {
		return fmt.Errorf("write claims into the status: %w", err)
	}
	return nil
}

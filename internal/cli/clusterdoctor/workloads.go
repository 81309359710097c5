// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package clusterdoctor

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// patience is how long something may take before it is a finding: images are pulled, and volumes are made.
const patience = 2 * time.Minute

// defaultClass is the annotation of the StorageClass of claims that name none.
const defaultClass = "storageclass.kubernetes.io/is-default-class"

// checkPods finds pods that do not run although they should.
func checkPods(ctx context.Context, e *examination) ([]Finding, error) {
	pods, err := e.client.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var out []Finding
	for _, p := range pods.Items {
		if why := e.hindrance(&p); why != "" {
			out = append(out, Finding{State: Note, What: fmt.Sprintf("%s/%s: %s", p.Namespace, p.Name, why),
				Do: fmt.Sprintf("mortise explain pod/%s -n %s, and mortise kubectl describe pod %[1]s -n %[2]s", p.Name, p.Namespace)})
		}
	}
	return out, nil
}

// hindrance returns why a pod does not run; empty: it runs, has ended, or may be on its way.
func (e *examination) hindrance(p *corev1.Pod) string {
	if p.DeletionTimestamp != nil {
		if e.clock.Since(p.DeletionTimestamp.Time) > patience {
			return "it is deleted, but does not end"
		}
		return ""
	}
	if p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed || !e.older(p, patience) {
		return ""
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := c.State.Waiting; w != nil && w.Reason != "" && w.Reason != "PodInitializing" && w.Reason != "ContainerCreating" {
			return fmt.Sprintf("container %s: %s: %s", c.Name, w.Reason, w.Message)
		}
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse {
			return "it has no node: " + c.Message
		}
	}
	if p.Status.Phase == corev1.PodPending {
		return "it waits for longer than two minutes"
	}
	return ""
}

// checkClaims finds claims without a volume.
func checkClaims(ctx context.Context, e *examination) ([]Finding, error) {
	claims, err := e.client.CoreV1().PersistentVolumeClaims("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	classes, err := e.client.StorageV1().StorageClasses().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	usual := ""
	late := map[string]bool{} // classes whose claims wait for their first pod
	for _, c := range classes.Items {
		if c.Annotations[defaultClass] == "true" {
			usual = c.Name
		}
		late[c.Name] = c.VolumeBindingMode != nil && *c.VolumeBindingMode == storagev1.VolumeBindingWaitForFirstConsumer
	}
	var out []Finding
	for _, c := range claims.Items {
		if c.Status.Phase == corev1.ClaimBound || !e.older(&c, patience) {
			continue
		}
		class := usual
		if c.Spec.StorageClassName != nil {
			class = *c.Spec.StorageClassName
		}
		name := c.Namespace + "/" + c.Name
		_, exists := late[class]
		do := fmt.Sprintf("mortise kubectl describe pvc %s -n %s", c.Name, c.Namespace)
		switch {
		case class == "" && c.Spec.StorageClassName == nil:
			out = append(out, Finding{State: Wrong, What: name + " names no StorageClass, and there is no default one",
				Do: "mortise kubectl annotate storageclass NAME " + defaultClass + "=true"})
		case class != "" && !exists:
			out = append(out, Finding{State: Wrong, What: fmt.Sprintf("%s waits for StorageClass %s, which does not exist", name, class), Do: do})
		case !late[class]:
			out = append(out, Finding{State: Wrong, What: fmt.Sprintf("%s is not bound (phase %s)", name, c.Status.Phase), Do: do})
		}
	}
	return out, nil
}

// checkNamespaces finds namespaces that do not end.
func checkNamespaces(ctx context.Context, e *examination) ([]Finding, error) {
	all, err := e.client.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var out []Finding
	for _, n := range all.Items {
		if n.DeletionTimestamp == nil || e.clock.Since(n.DeletionTimestamp.Time) < patience {
			continue
		}
		why := "is deleted, but does not end"
		for _, c := range n.Status.Conditions {
			if c.Status == corev1.ConditionTrue {
				why += ": " + c.Message
			}
		}
		out = append(out, Finding{State: Wrong, What: n.Name + " " + why,
			Do: "mortise kubectl get namespace " + n.Name + " -o yaml names what is left"})
	}
	return out, nil
}

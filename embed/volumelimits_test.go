// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
)

// TestVolumeLimit: a pod over the limit of a CSINode waits with kube-scheduler's message, and is bound when the limit rises.
func TestVolumeLimit(t *testing.T) {
	t.Parallel()
	const driver, nodeName = "limited.example.com", "simulated-0"
	s := embedtest.Start(t, &embed.Server{Nodes: 1})
	c := kubernetes.NewForConfigOrDie(s.Config())
	awaitNodes(t, c, 1, ready)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	node, err := c.CoreV1().Nodes().Get(ctx, nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	limit := func(most int32) storagev1.CSINodeSpec {
		return storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{
			{Name: driver, NodeID: nodeName, Allocatable: &storagev1.VolumeNodeResources{Count: &most}},
		}}
	}
	if _, err := c.StorageV1().CSINodes().Create(ctx, &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: nodeName, OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "v1", Kind: "Node", Name: nodeName, UID: node.UID},
		}},
		Spec: limit(1),
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	until := func(name, what string, is func(*corev1.Pod) bool) {
		t.Helper()
		lw := cache.NewListWatchFromClient(c.CoreV1().RESTClient(), "pods", "default", fields.OneTermEqualSelector("metadata.name", name))
		var last *corev1.Pod
		if _, err := watchtools.UntilWithSync(ctx, lw, &corev1.Pod{}, nil, func(e watch.Event) (bool, error) {
			pod, ok := e.Object.(*corev1.Pod)
			last = pod
			return ok && is(pod), nil
		}); err != nil {
			t.Fatalf("%s is not %s: %v, %+v", name, what, err, last)
		}
	}
	running := func(pod *corev1.Pod) bool { return pod.Status.Phase == corev1.PodRunning }
	for i := range 2 {
		podWithVolume(ctx, t, c, fmt.Sprint("p", i), driver)
		if i == 0 {
			until("p0", "running", running)
		}
	}
	const message = "0/1 nodes are available: 1 node(s) exceed max volume count. preemption: 0/1 nodes are available: " +
		"1 No preemption victims found for incoming pod."
	until("p1", "unschedulable, with the message "+message, func(pod *corev1.Pod) bool {
		for _, condition := range pod.Status.Conditions {
			// Before its claim is bound, the pod has another message.
			if condition.Type == corev1.PodScheduled && condition.Reason == corev1.PodReasonUnschedulable && condition.Message == message {
				return true
			}
		}
		return false
	})
	if _, err := c.StorageV1().CSINodes().Patch(ctx, nodeName, types.MergePatchType,
		[]byte(fmt.Sprintf(`{"spec":{"drivers":[{"name":%q,"nodeID":%q,"topologyKeys":null,"allocatable":{"count":2}}]}}`, driver, nodeName)),
		metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	until("p1", "running", running)
}

// podWithVolume creates a volume, its claim and a pod that uses it.
func podWithVolume(ctx context.Context, t *testing.T, c kubernetes.Interface, name, driver string) {
	t.Helper()
	size := corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	modes := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	if _, err := c.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			Capacity: size, AccessModes: modes, ClaimRef: &corev1.ObjectReference{Namespace: "default", Name: name},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: driver, VolumeHandle: name}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().PersistentVolumeClaims("default").Create(ctx, &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: modes, VolumeName: name, StorageClassName: new(string), Resources: corev1.VolumeResourceRequirements{Requests: size},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "i", VolumeMounts: []corev1.VolumeMount{{Name: "v", MountPath: "/v"}}}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
			}}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

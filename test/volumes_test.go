// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-helpers/storage/volume"
)

// TestVolumesAreBoundWhereThePodGoes: a claim that waits for its first pod gets a local volume, and the pod the volume's node; one of a
// driver's class is made where the scheduler says, and elsewhere when the driver says that it cannot be.
func TestVolumesAreBoundWhereThePodGoes(t *testing.T) {
	p := up(t, t.TempDir(), "--node", "simulated", "--nodes", "3")
	c := p.client()
	nodes := map[string]*corev1.Node{}
	awaitEvent(t, c, "nodes", "", fields.Everything(), &corev1.Node{}, 30*time.Second, func(e watch.Event) bool {
		if n, ok := e.Object.(*corev1.Node); ok {
			nodes[n.Name] = n
		}
		return len(nodes) == 3
	})
	wait := storagev1.VolumeBindingWaitForFirstConsumer
	for name, by := range map[string]string{"local": volume.NotSupportedProvisioner, "made": "example.com/maker"} {
		if _, err := c.StorageV1().StorageClasses().Create(t.Context(),
			&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: by, VolumeBindingMode: &wait},
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}

	// A volume that is there.
	node := nodes["simulated-1"]
	if err := makeVolume(t.Context(), c, "disk", "local", node.Labels[corev1.LabelHostname], nil); err != nil {
		t.Fatal(err)
	}
	makeClaim(t, c, "local")
	makeUser(t, c, "local")
	if pod := bound(t, c, "local"); pod.Spec.NodeName != node.Name {
		t.Errorf("the pod is on %s, and its volume on %s", pod.Spec.NodeName, node.Name)
	}
	awaitEvent(t, c, "persistentvolumeclaims", "default", fields.OneTermEqualSelector("metadata.name", "local"),
		&corev1.PersistentVolumeClaim{}, 30*time.Second, func(e watch.Event) bool {
			claim, ok := e.Object.(*corev1.PersistentVolumeClaim)
			return ok && claim.Spec.VolumeName == "disk" && claim.Status.Phase == corev1.ClaimBound
		})

	// Volumes that are made; the first node that is tried has no room.
	full := ""
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- makeVolumes(ctx, c, &full) }()
	makeClaim(t, c, "made")
	makeUser(t, c, "made")
	pod := bound(t, c, "made")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if full == "" || pod.Spec.NodeName == "" {
		t.Errorf("the pod is on %q; %q was tried first", pod.Spec.NodeName, full)
	}

	// A claim that nothing satisfies keeps its pod waiting, and the event says why.
	makeClaim(t, c, "none")
	makeUser(t, c, "none")
	awaitEvent(t, c, "pods", "default", fields.OneTermEqualSelector("metadata.name", "none"), &corev1.Pod{}, 30*time.Second,
		func(e watch.Event) bool {
			pod, ok := e.Object.(*corev1.Pod)
			if !ok {
				return false
			}
			for _, condition := range pod.Status.Conditions {
				if strings.HasPrefix(condition.Message, "0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.") {
					return true
				}
			}
			return false
		})
}

func makeClaim(t *testing.T, c kubernetes.Interface, class string) {
	t.Helper()
	if _, err := c.CoreV1().PersistentVolumeClaims("default").Create(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: class},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// makeVolume makes a volume of 2Gi on a node, for a claim or for any.
func makeVolume(ctx context.Context, c kubernetes.Interface, name, class, host string, claim *corev1.ObjectReference) error {
	_, err := c.CoreV1().PersistentVolumes().Create(ctx, &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, ClaimRef: claim, Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")},
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{Local: &corev1.LocalVolumeSource{Path: "/mnt/disk"}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn,
					Values: []string{host}}},
			}}}},
		},
	}, metav1.CreateOptions{})
	return err
}

func makeUser(t *testing.T, c kubernetes.Interface, claim string) {
	t.Helper()
	if _, err := c.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: claim},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "c", Image: "mortise.local/busybox:1",
				VolumeMounts: []corev1.VolumeMount{{Name: "data", MountPath: "/data"}}}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// bound waits until a pod has a node.
func bound(t *testing.T, c kubernetes.Interface, name string) (pod *corev1.Pod) {
	t.Helper()
	awaitEvent(t, c, "pods", "default", fields.OneTermEqualSelector("metadata.name", name), &corev1.Pod{}, 30*time.Second,
		func(e watch.Event) bool {
			pod, _ = e.Object.(*corev1.Pod)
			return pod != nil && pod.Spec.NodeName != ""
		})
	return pod
}

// makeVolumes is a driver's provisioner: it makes a volume where the scheduler wants it, but for the first node that it wants, which
// is full: that is told by taking the node's name away from the claim.
func makeVolumes(ctx context.Context, c kubernetes.Interface, full *string) error {
	w, err := c.CoreV1().PersistentVolumeClaims("default").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		claim, ok := e.Object.(*corev1.PersistentVolumeClaim)
		if !ok || claim.Annotations[volume.AnnStorageProvisioner] != "example.com/maker" || claim.Spec.VolumeName != "" {
			continue
		}
		node := claim.Annotations[volume.AnnSelectedNode]
		switch {
		case node == "":
		case *full == "":
			*full = node
			if err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
				now, err := c.CoreV1().PersistentVolumeClaims("default").Get(ctx, claim.Name, metav1.GetOptions{})
				if err != nil {
					return err
				}
				delete(now.Annotations, volume.AnnSelectedNode)
				_, err = c.CoreV1().PersistentVolumeClaims("default").Update(ctx, now, metav1.UpdateOptions{})
				return err
			}); err != nil {
				return fmt.Errorf("refuse claim: %w", err)
			}
		default:
			return makeVolume(ctx, c, "made-"+string(claim.UID), "made", node, &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", Namespace: claim.Namespace, Name: claim.Name, UID: claim.UID,
			})
		}
	}
	return ctx.Err()
}

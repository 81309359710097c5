// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/mortise-dev/mortise/extension/trace"
)

// What a claim and its volume wait for.
func TestStorageWaits(t *testing.T) {
	now := time.Date(2026, 11, 28, 7, 0, 0, 0, time.UTC)
	claim := func(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "data", UID: "u"}}
		c.Status.Phase = corev1.ClaimPending
		if change != nil {
			change(c)
		}
		return c
	}
	bound := func(conditions ...corev1.PersistentVolumeClaimCondition) *corev1.PersistentVolumeClaim {
		return claim(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.VolumeName, c.Status.Phase, c.Status.Conditions = "pv", corev1.ClaimBound, conditions
			c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Gi")}
		})
	}
	volume := func(phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
		v := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}
		v.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: "h"}
		v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "ns", Name: "data", UID: "u"}
		v.Spec.PersistentVolumeReclaimPolicy, v.Status.Phase = corev1.PersistentVolumeReclaimDelete, phase
		return v
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "web"}, Spec: corev1.PodSpec{NodeName: "n1"}}
	pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	node := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
		Name: "d.example.com"}}}}
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Provisioner: "d.example.com",
		VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer)}
	attachment := func(change func(*storagev1.VolumeAttachment)) *storagev1.VolumeAttachment {
		a := &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "csi-1", CreationTimestamp: metav1.NewTime(now.Add(-time.Minute))},
			Spec: storagev1.VolumeAttachmentSpec{Attacher: "d.example.com", NodeName: "n1",
				Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: new("pv")}}}
		change(a)
		return a
	}
	resizing := corev1.PersistentVolumeClaimCondition{Type: corev1.PersistentVolumeClaimResizing, Status: corev1.ConditionTrue}
	for name, c := range map[string]struct {
		objects []any
		want    []string
	}{
		"no class": {[]any{claim(nil)}, []string{"a PersistentVolume without a class that fits"}},
		"class that is not there": {[]any{claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("fast") })},
			[]string{"a PersistentVolume of the class fast that fits, or the StorageClass of that name, which does not exist"}},
		"no pod": {[]any{class, claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("slow") })},
			[]string{"a pod that uses the claim: its class has WaitForFirstConsumer"}},
		"a pod": {[]any{class, pod, claim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = new("slow") })},
			[]string{"the scheduler, to choose a node for pod web"}},
		"provisioner": {[]any{class, claim(func(c *corev1.PersistentVolumeClaim) {
			c.Spec.StorageClassName = new("slow")
			c.Annotations = map[string]string{"volume.kubernetes.io/storage-provisioner": "d.example.com"}
		})}, []string{"the external-provisioner of d.example.com, to provision a volume"}},
		"nothing": {[]any{bound(), volume(corev1.VolumeBound), pod, node}, nil},
		"registration": {[]any{bound(), volume(corev1.VolumeBound), pod},
			[]string{"the driver d.example.com, to register on node n1, for pod web"}},
		"attachment": {[]any{bound(), volume(corev1.VolumeBound), pod, node, attachment(func(a *storagev1.VolumeAttachment) {
			a.Status.AttachError = &storagev1.VolumeError{Message: "no luck"}
		})}, []string{"the external-attacher of d.example.com, to attach it to node n1, for 1m0s: no luck"}},
		"detachment": {[]any{volume(corev1.VolumeBound), attachment(func(a *storagev1.VolumeAttachment) {
			a.Status.Attached, a.DeletionTimestamp = true, new(metav1.NewTime(now.Add(-time.Second)))
			a.Finalizers = []string{"external-attacher/d-example-com"}
		})}, []string{"the external-attacher of d.example.com, to detach it from node n1, for 1s"}},
		"expansion": {[]any{bound(resizing), volume(corev1.VolumeBound)},
			[]string{"the external-resizer of d.example.com, to expand the volume to 2Gi"}},
		"deletion": {[]any{volume(corev1.VolumeReleased)}, []string{"the external-provisioner of d.example.com, to delete the volume"}},
	} {
		client := fake.NewClientset()
		namespace, what := "", "pv"
		for _, o := range c.objects {
			var err error
			switch o := o.(type) {
			case *corev1.PersistentVolumeClaim:
				namespace, what = "ns", "data"
				err = client.Tracker().Add(o)
			case *corev1.PersistentVolume:
				err = client.Tracker().Add(o)
			case *corev1.Pod:
				err = client.Tracker().Add(o)
			case *storagev1.CSINode:
				err = client.Tracker().Add(o)
			case *storagev1.StorageClass:
				err = client.Tracker().Add(o)
			case *storagev1.VolumeAttachment:
				err = client.Tracker().Add(o)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		s, err := findStorage(t.Context(), client, namespace, what)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.waits(now); !slices.Equal(got, c.want) {
			t.Errorf("%s: waits for %q, want %q", name, got, c.want)
		}
	}
}

// Calls of a driver have their codes, and the number of the attempt.
func TestStorageCalls(t *testing.T) {
	var out strings.Builder
	v := &storageView{Claim: "ns/data", Volume: "pv", Driver: "d.example.com", Waits: []string{"one", "two"}}
	v.Calls = []trace.Call{
		{Time: "2026-11-27T10:00:00Z", Method: "NodeStageVolume", Seconds: 0.002, Code: "Aborted", Error: "NodeStageVolume: busy"},
		{Time: "2026-11-27T10:00:01Z", Method: "NodeStageVolume", Seconds: 0.003, Code: "OK"},
		{Time: "2026-11-27T10:00:02Z", Method: "NodePublishVolume", Seconds: 120, Code: "DeadlineExceeded", Error: "late"},
	}
	if err := printStorage(&out, v); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Waits for: one\n           two\n", "NodeStageVolume    1    Aborted           2", "NodeStageVolume    2    OK  ",
		"NodePublishVolume  1    DeadlineExceeded  2m0s"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package attachdetach

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// volumeObjects returns a volume NAME of the handle NAME, bound to the claim NAME, and a pod NAME on the node if one is given.
func volumeObjects(name, node string) []runtime.Object {
	claim := types.UID("claim-" + name)
	objects := []runtime.Object{
		&corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
				ClaimRef:    &corev1.ObjectReference{Namespace: "default", Name: name, UID: claim},
				PersistentVolumeSource: corev1.PersistentVolumeSource{
					CSI: &corev1.CSIPersistentVolumeSource{Driver: "d.example.com", VolumeHandle: name},
				},
			},
		},
		&corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: claim},
			Spec:       corev1.PersistentVolumeClaimSpec{VolumeName: name},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimBound},
		},
	}
	if node == "" {
		return objects
	}
	return append(objects, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("pod-" + name)},
		Spec: corev1.PodSpec{NodeName: node, Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}}}},
	})
}

func volumeName(handle string) string { return plugin + "/d.example.com^" + handle }

func volumeAttachment(handle, node string) *storagev1.VolumeAttachment {
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{Name: attachmentName(volumeName(handle), node), UID: types.UID("attachment-" + handle)},
		Spec: storagev1.VolumeAttachmentSpec{Attacher: "d.example.com", NodeName: node,
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &handle}},
		Status: storagev1.VolumeAttachmentStatus{Attached: true},
	}
}

// run runs the controller among the objects for a minute, and returns the client.
func run(t *testing.T, objects ...runtime.Object) *fake.Clientset {
	t.Helper()
	client := fake.NewClientset(objects...)
	definitions := runtime.NewScheme()
	if err := metav1.AddMetaToScheme(definitions); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- controllers.RunWith(ctx, []controllers.Controller{Controller()}, &controllers.Deps{
			Client: client, Discovery: client.Discovery(), Metadata: metadatafake.NewSimpleMetadataClient(definitions),
			Dynamic: dynamicfake.NewSimpleDynamicClient(definitions),
		}, controllers.Options{Clock: clock.RealClock{}})
	}()
	time.Sleep(time.Minute)
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	time.Sleep(time.Minute)
	return client
}

// After a restart, what pods use stays attached, and what they do not is detached unless the node uses it.
func TestRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}},
			Status: corev1.NodeStatus{
				VolumesAttached: []corev1.AttachedVolume{
					{Name: "kubernetes.io/iscsi/other"}, {Name: corev1.UniqueVolumeName(volumeName("used"))},
					{Name: corev1.UniqueVolumeName(volumeName("idle"))}, {Name: corev1.UniqueVolumeName(volumeName("mounted"))},
					{Name: corev1.UniqueVolumeName(volumeName("volumeless"))}, {Name: corev1.UniqueVolumeName(volumeName("lost"))},
				},
				VolumesInUse: []corev1.UniqueVolumeName{corev1.UniqueVolumeName(volumeName("mounted"))},
			},
		}
		foreign := volumeAttachment("foreign", "n")
		foreign.Name = "of another client"
		objects := []runtime.Object{node, foreign, volumeAttachment("volumeless", "n")}
		for _, name := range []string{"used", "idle", "mounted", "unlisted"} {
			objects = append(objects, volumeAttachment(name, "n"))
		}
		for name, on := range map[string]string{"used": "n", "idle": "", "mounted": "", "unlisted": "", "lost": "n", "foreign": ""} {
			objects = append(objects, volumeObjects(name, on)...)
		}
		client := run(t, objects...)

		want := []string{foreign.Name}
		for _, name := range []string{"used", "mounted", "lost"} {
			want = append(want, attachmentName(volumeName(name), "n"))
		}
		list, err := client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range list.Items {
			got = append(got, a.Name)
		}
		slices.Sort(got)
		if slices.Sort(want); !slices.Equal(got, want) {
			t.Errorf("attachments after the restart:\n got %q\nwant %q", got, want)
		}
		node, err = client.CoreV1().Nodes().Get(t.Context(), "n", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var attached []string
		for _, v := range node.Status.VolumesAttached {
			attached = append(attached, string(v.Name))
		}
		if want := []string{"kubernetes.io/iscsi/other", volumeName("mounted"), volumeName("used")}; !slices.Equal(attached, want) {
			t.Errorf("volumesAttached after the restart:\n got %q\nwant %q", attached, want)
		}
	})
}

// A volume that is not shared is attached to one of two nodes whose pods use it.
func TestExclusive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		managed := map[string]string{"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
		objects := volumeObjects("v", "a")
		second, _ := objects[2].DeepCopyObject().(*corev1.Pod)
		second.Name, second.UID, second.Spec.NodeName = "second", "second", "b"
		client := run(t, append(objects, second, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: managed}},
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "b", Annotations: managed}})...)
		list, err := client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) != 1 || list.Items[0].Spec.NodeName != "a" {
			t.Errorf("got %v, want one VolumeAttachment, on node a", list.Items)
		}
	})
}

func TestJudge(t *testing.T) {
	for _, c := range []struct {
		h       host
		idle    time.Duration
		noForce bool
		want    verdict
	}{
		{host{}, 0, false, ask},
		{host{ready: true}, 0, false, ask},
		{host{mounted: true}, unmountWait, false, wait},
		{host{mounted: true}, unmountWait + 1, false, byTimeout},
		{host{mounted: true}, unmountWait + 1, true, wait},
		{host{mounted: true, ready: true}, time.Hour, false, wait},
		{host{ready: true}, time.Hour, false, byTimeout}, // as upstream: it does not ask twice
		{host{ready: true}, time.Hour, true, ask},
		{host{mounted: true, outOfService: true}, 0, true, byTaint},
		{host{mounted: true, outOfService: true, ready: true}, 0, false, byTaint},
	} {
		if got := judge(c.h, c.idle, c.noForce); got != c.want {
			t.Errorf("judge(%+v, %v, %v) = %d, want %d", c.h, c.idle, c.noForce, got, c.want)
		}
	}
}

func TestConflict(t *testing.T) {
	pod := func(namespace, name string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}
	for want, holders := range map[string][]*corev1.Pod{
		"Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node": nil,
		"Volume is already used by pod(s) p, q":                                   {pod("a", "p"), pod("a", "q")},
		"Volume is already used by pod(s) p and 1 pod(s) in different namespaces": {pod("a", "p"), pod("b", "q")},
		"Volume is already used by 1 pod(s) in different namespaces":              {pod("b", "q")},
	} {
		if got := conflict("a", holders); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

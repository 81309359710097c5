// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package objectcache_test

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/mortise-dev/mortise/internal/agent/objectcache"
)

// referring is a pod that refers to ConfigMaps.
func referring(uid types.UID, names ...string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: string(uid), UID: uid}}
	for _, name := range names {
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: name}},
		}})
	}
	return pod
}

// gets counts the reads of single objects.
func gets(client *fake.Clientset) (count int) {
	for _, a := range client.Actions() {
		if a.GetVerb() == "get" {
			count++
		}
	}
	return count
}

func TestRegisteredPodsHearOfTheirObjects(t *testing.T) {
	ctx := t.Context()
	client := fake.NewClientset(&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"},
		Data: map[string]string{"k": "1"}})
	heard := make(chan []types.UID, 100)
	m := objectcache.New(client, "n1", func(users []types.UID) { heard <- users })
	hears := func(want types.UID) {
		t.Helper()
		select {
		case users := <-heard:
			if len(users) != 1 || users[0] != want {
				t.Fatalf("%v, want %s", users, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s hears nothing", want)
		}
	}

	// Without a pod that refers to it, an object is read from the API server.
	if c, err := m.ConfigMap(ctx, "ns", "a"); err != nil || c.Data["k"] != "1" || gets(client) != 1 {
		t.Fatalf("%v, %v, %d reads", c, err, gets(client))
	}
	m.RegisterPod(ctx, referring("u1", "a", "b"))
	hears("u1")
	if c, err := m.ConfigMap(ctx, "ns", "a"); err != nil || c.Data["k"] != "1" || gets(client) != 1 {
		t.Fatalf("%v, %v, %d reads", c, err, gets(client))
	}
	if _, err := m.ConfigMap(ctx, "ns", "b"); !apierrors.IsNotFound(err) {
		t.Fatalf("%v, want not found", err)
	}
	changed := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}, Data: map[string]string{"k": "2"}}
	if _, err := client.CoreV1().ConfigMaps("ns").Update(ctx, changed, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	hears("u1")
	if c, err := m.ConfigMap(ctx, "ns", "a"); err != nil || c.Data["k"] != "2" || gets(client) != 1 {
		t.Fatalf("%v, %v, %d reads", c, err, gets(client))
	}

	// The last pod that refers to an object ends its watch.
	m.UnregisterPod("u1")
	if c, err := m.ConfigMap(ctx, "ns", "a"); err != nil || c.Data["k"] != "2" || gets(client) != 2 {
		t.Fatalf("%v, %v, %d reads", c, err, gets(client))
	}
	m.RegisterPod(ctx, referring("u2", "a"))
	hears("u2")
	m.Stop()
}

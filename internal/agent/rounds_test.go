// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/pleg"
)

// TestPodStartsWhileItsStatusIsWritten: the runtime is asked for a sandbox while the API server still writes that there is none.
func TestPodStartsWhileItsStatusIsWritten(t *testing.T) {
	c, r := newFake(t, nil)
	asked := make(chan struct{})
	once := sync.OnceFunc(func() { close(asked) })
	r.Fault("RunPodSandbox", func() error {
		once()
		return nil
	})
	first := sync.OnceFunc(func() {
		select {
		case <-asked:
		case <-time.After(20 * time.Second):
			t.Error("the sandbox waits for the status")
		}
	})
	c.answers.Prepend("patch", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
		first()
		return false, nil, nil
	})
	c.create(onePod("p"))
	pod := c.await("p", "ready", isReady)
	if pod.Status.StartTime == nil || len(pod.Status.PodIPs) == 0 {
		t.Errorf("status: %+v", pod.Status)
	}
}

// TestListSumsWhatWorkersSee: a list of all that the runtime has is no news to a worker that has seen the same, and is to one that has not.
func TestListSumsWhatWorkersSee(t *testing.T) {
	c, r := newFake(t, nil)
	made := c.create(onePod("p"))
	c.await("p", "ready", isReady)
	client, err := cri.Dial(t.Context(), r.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	c.stop() // nobody starts anything again
	g := pleg.New(pleg.Config{Runtime: client})
	look := func() uint64 {
		t.Helper()
		list, err := g.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		seen, err := client.Observe(t.Context(), made.UID)
		if err != nil {
			t.Fatal(err)
		}
		if list[made.UID] != pleg.Sum(seen) {
			t.Errorf("the list sums to %d, what a worker sees to %d", list[made.UID], pleg.Sum(seen))
		}
		return pleg.Sum(seen)
	}
	before := look()
	if !r.Exit("p", "c", 1) {
		t.Fatal("no container runs")
	}
	if look() == before {
		t.Error("an exit is not seen")
	}
}

// TestContainersGoOnWithoutTheirSources: what is mounted stays when what it came of is gone, and containers are started again; new pods
// wait.
func TestContainersGoOnWithoutTheirSources(t *testing.T) {
	c, r := newFake(t, nil)
	maps := c.client.CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "conf"},
		Data: map[string]string{"a": "b"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	reading := func(name string) *corev1.Pod {
		p := onePod(name)
		p.Spec.Volumes = []corev1.Volume{{Name: "conf",
			VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
				LocalObjectReference: corev1.LocalObjectReference{Name: "conf"}}}}}
		return p
	}
	c.create(reading("old"))
	c.await("old", "ready", isReady)
	if err := maps.Delete(t.Context(), "conf", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.create(reading("new"))
	c.awaitEvent("new", `FailedMount: MountVolume.SetUp failed for volume "conf" : configmap "conf" not found`)
	if !r.Exit("old", "c", 1) {
		t.Fatal("there is no container to end")
	}
	c.await("old", "running again", running(1))
	c.awaitEvent("old", `FailedMount: MountVolume.SetUp failed for volume "conf" : configmap "conf" not found`)
	if _, made := r.Made("new", "c"); made != nil {
		t.Error("a pod was begun without its volume")
	}
}

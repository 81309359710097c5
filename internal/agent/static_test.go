// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/mortise-dev/mortise/internal/agent/podspec"
	"github.com/mortise-dev/mortise/internal/kinds/upstream"
	"github.com/mortise-dev/mortise/internal/machine/images"
)

const webManifest = "apiVersion: v1\nkind: Pod\nmetadata: {name: web, labels: {round: 'ROUND'}}\n" +
	"spec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: '" + images.Busybox + "', " +
	"imagePullPolicy: IfNotPresent, command: [sh, -c, 'trap \"exit 0\" TERM; sleep 3600 & wait']}]}\n"

// manifest puts a file in its place as a whole.
func manifest(t *testing.T, dir, name, text string) {
	t.Helper()
	hidden := filepath.Join(dir, "."+name)
	if err := os.WriteFile(hidden, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(hidden, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

func round(n string) string { return strings.ReplaceAll(webManifest, "ROUND", n) }

func TestStaticPodAndItsMirror(t *testing.T) {
	dir := t.TempDir()
	manifest(t, dir, "web.yaml", round("1"))
	c, r := newConfigured(t, "staticPodPath: "+dir+"\n", func(o *Options) { o.DecodePods = upstream.StaticPods })
	first := c.await("web-n1", "shown", isReady)
	hash := first.Annotations["kubernetes.io/config.hash"]
	if first.Annotations["kubernetes.io/config.source"] != "file" || first.Annotations["kubernetes.io/config.mirror"] != hash || hash == "" ||
		first.Annotations["kubernetes.io/config.seen"] == "" || string(first.UID) == hash {
		t.Errorf("mirror: %+v", first.ObjectMeta)
	}
	if len(first.OwnerReferences) != 1 || first.OwnerReferences[0].Kind != "Node" || first.OwnerReferences[0].Name != "n1" ||
		first.OwnerReferences[0].UID == "" || !*first.OwnerReferences[0].Controller {
		t.Errorf("owner: %+v", first.OwnerReferences)
	}
	if _, err := c.node.Exec(t.Context(), podspec.Target{Namespace: "default", Pod: "web-n1", UID: first.UID, Container: "c"},
		[]string{"true"}, podspec.Streams{}); err == nil || strings.Contains(err.Error(), "not found") {
		t.Errorf("the pod is not found by its mirror's UID: %v", err)
	}

	// Somebody deletes it: it is shown again, and runs on.
	if err := c.client.CoreV1().Pods("default").Delete(t.Context(), "web-n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	second := c.await("web-n1", "shown again", func(p *corev1.Pod) bool { return isReady(p) && p.UID != first.UID })
	if second.Status.ContainerStatuses[0].ContainerID != first.Status.ContainerStatuses[0].ContainerID {
		t.Error("the container was started again")
	}

	// A bad manifest changes nothing, and a new one makes another pod, after the old one has ended.
	manifest(t, dir, "web.yaml", "kind: Pod\n")
	manifest(t, dir, "other.yaml", strings.Replace(round("1"), "name: web", "name: other", 1))
	c.await("other-n1", "shown", isReady)
	manifest(t, dir, "web.yaml", round("2"))
	third := c.await("web-n1", "of the new manifest", func(p *corev1.Pod) bool { return isReady(p) && p.Labels["round"] == "2" })
	if third.Annotations["kubernetes.io/config.hash"] == hash ||
		third.Status.ContainerStatuses[0].ContainerID == first.Status.ContainerStatuses[0].ContainerID {
		t.Errorf("pod: %+v", third)
	}
	if n := r.Calls("CreateContainer"); n != 3 {
		t.Errorf("%d containers were made, want 3", n)
	}

	if err := os.Remove(filepath.Join(dir, "web.yaml")); err != nil {
		t.Fatal(err)
	}
	c.await("web-n1", "gone", func(p *corev1.Pod) bool { return p == nil })
	if !isReady(c.await("other-n1", "still there", isReady)) {
		t.Error("the other pod suffered")
	}
}

func TestStaticPodRunsWithoutAPIServer(t *testing.T) {
	dir := t.TempDir()
	manifest(t, dir, "web.yaml", round("1"))
	client, gone := fake.NewClientset(), atomic.Bool{}
	gone.Store(true)
	client.PrependReactor("*", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		if gone.Load() {
			return true, nil, errors.New("connection refused")
		}
		return false, nil, nil
	})
	started := make(chan struct{}, 100)
	c, r := newConfigured(t, "staticPodPath: "+dir+"\n", func(o *Options) {
		o.Client, o.DecodePods = client, upstream.StaticPods
		o.Recorder = startedRecorder(func() {
			started <- struct{}{}
			gone.Store(false) // the API server comes after the pod has started
		})
	})
	select {
	case <-started:
	case <-time.After(30 * time.Second):
		t.Fatal("the pod does not start")
	}
	c.await("web-n1", "shown", isReady)
	if n := r.Calls("CreateContainer"); n != 1 {
		t.Errorf("%d containers were made", n)
	}
}

// startedRecorder is called when a container has started.
type startedRecorder func()

func (f startedRecorder) Event(_ runtime.Object, _, reason, _ string) {
	if reason == "Started" {
		f()
	}
}

func (f startedRecorder) Eventf(o runtime.Object, kind, reason, _ string, _ ...any) {
	f.Event(o, kind, reason, "")
}

func (f startedRecorder) AnnotatedEventf(o runtime.Object, _ map[string]string, kind, reason, _ string, _ ...any) {
	f.Event(o, kind, reason, "")
}

func TestMirrorWithoutPodIsRemoved(t *testing.T) {
	client := fake.NewClientset(&corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "old-n1", UID: "m",
			Annotations: map[string]string{corev1.MirrorPodAnnotationKey: "x", "kubernetes.io/config.source": "file"}},
		Spec: corev1.PodSpec{NodeName: "n1"},
	})
	c, r := newConfigured(t, "staticPodPath: "+t.TempDir()+"\n", func(o *Options) { o.Client, o.DecodePods = client, upstream.StaticPods })
	c.await("old-n1", "gone", func(p *corev1.Pod) bool { return p == nil })
	if n := r.Calls("RunPodSandbox"); n != 0 {
		t.Errorf("%d sandboxes were made for a mirror", n)
	}
}

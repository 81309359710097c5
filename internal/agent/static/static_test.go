// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package static

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	fakeclient "k8s.io/client-go/kubernetes/fake"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
	"github.com/mortise-dev/mortise/internal/agent/podspec"
)

// node is a node that knows pods, and writes down what is asked of it.
type node struct {
	synced bool
	pods   map[types.UID]*corev1.Pod
	calls  []string
	asked  chan string // to delete
}

func (n *node) Spec(pod types.UID) *corev1.Pod { return n.pods[pod] }
func (n *node) Synced() bool                   { return n.synced }
func (n *node) SetPod(pod *corev1.Pod) {
	n.pods[pod.UID] = pod
	n.calls = append(n.calls, "set "+string(pod.UID))
}
func (n *node) RemovePod(pod *corev1.Pod) {
	delete(n.pods, pod.UID)
	n.calls = append(n.calls, "remove "+string(pod.UID))
}
func (n *node) WakeNamed(name types.NamespacedName) { n.calls = append(n.calls, "wake "+name.String()) }
func (n *node) DeletePod(_ context.Context, pod *corev1.Pod) error {
	n.asked <- string(pod.UID)
	return nil
}
func (n *node) StaticPods() (out []*corev1.Pod) {
	for _, p := range n.pods {
		out = append(out, p)
	}
	return out
}

func manifest(uid types.UID, hash string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "web-n1", UID: uid, Annotations: map[string]string{podspec.ConfigHash: hash},
	}}
}

func TestPodsOfASource(t *testing.T) {
	n := &node{pods: map[types.UID]*corev1.Pod{}, asked: make(chan string, 10)}
	fake := clocktesting.NewFakeClock(time.Now())
	k := kubeletconfig.Default()
	k.StaticPodPath = t.TempDir()
	client := fakeclient.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node"}})
	m := New(Config{
		Client: client, Definitions: n, Workers: n, Deleter: n, NodeName: "n1", Kubelet: k, Clock: fake, Logger: slog.New(slog.DiscardHandler),
	})
	if m.SourcesRead() {
		t.Error("a source has been read that has not spoken")
	}
	m.set("file", []*corev1.Pod{manifest("a", "1")})
	first := n.pods["a"].Annotations[podspec.ConfigSeen]
	fake.Step(time.Hour)
	m.set("file", []*corev1.Pod{manifest("a", "1")})
	if !m.SourcesRead() || n.pods["a"].Annotations[podspec.ConfigSeen] != first || !podspec.IsStatic(n.pods["a"]) {
		t.Errorf("pod %+v, first seen %s", n.pods["a"], first)
	}

	// A mirror is made when the API server's pods are known, and only once.
	if mirror, err := m.Mirror(t.Context(), n.pods["a"]); mirror != nil || err != nil {
		t.Errorf("mirror %v, %v", mirror, err)
	}
	n.synced = true
	for range 2 {
		mirror, err := m.Mirror(t.Context(), n.pods["a"])
		if err != nil || mirror.Annotations[corev1.MirrorPodAnnotationKey] != "1" ||
			mirror.OwnerReferences[0].UID != "node" || !m.IsMirror(n.pods["a"], mirror.UID) {
			t.Fatalf("mirror %+v, %v", mirror, err)
		}
	}

	// Another manifest is another pod; the mirror of the one before is deleted.
	m.set("file", []*corev1.Pod{manifest("b", "2")})
	if diff := cmp.Diff([]string{"set a", "set a", "remove a", "set b"}, n.calls); diff != "" {
		t.Error(diff)
	}
	if mirror, err := m.Mirror(t.Context(), n.pods["b"]); mirror != nil || err != nil || len(n.asked) != 1 {
		t.Errorf("mirror %v, %v, %d deletions", mirror, err, len(n.asked))
	}
	<-n.asked

	// What nobody has any more is an orphan.
	m.set("file", nil)
	ctx, cancel := context.WithCancel(t.Context())
	over := make(chan error, 1)
	go func() { over <- m.RemoveOrphans(ctx) }()
	<-n.asked
	cancel()
	if err := <-over; err != nil {
		t.Error(err)
	}
}

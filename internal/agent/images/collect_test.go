// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package images

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/agent/cri"
	"github.com/mortise-dev/mortise/internal/agent/cri/fakecri"
	"github.com/mortise-dev/mortise/internal/agent/evict"
	"github.com/mortise-dev/mortise/internal/agent/kubeletconfig"
)

// neighbours are a Manager's: no secrets, and the pods of the test.
type neighbours struct{ pods []*corev1.Pod }

func (n *neighbours) AdmittedPods() []*corev1.Pod { return n.pods }

func (n *neighbours) Secret(context.Context, string, string) (*corev1.Secret, error) {
	return nil, errors.New("no secrets")
}

func using(image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image, ImagePullPolicy: corev1.PullIfNotPresent}}},
	}
}

func TestImagesOfAdmittedPodsStay(t *testing.T) {
	ctx := t.Context()
	r := fakecri.New(t.TempDir(), clock.RealClock{}.Now)
	if err := r.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Stop)
	runtime, err := cri.Dial(ctx, r.Socket())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { runtime.Close(context.WithoutCancel(ctx)) })
	r.Pullable("example.org/a:1")
	near, events := &neighbours{}, record.NewFakeRecorder(10)
	m, err := New(ctx, Config{
		Runtime: runtime, Secrets: near, Pods: near, Measure: func(context.Context) evict.Observations { return nil },
		Kubelet: kubeletconfig.Default(), RootDir: t.TempDir(), Node: &corev1.ObjectReference{Kind: "Node", Name: "n1"},
		Events: events, Metrics: NewMetrics(), Clock: clock.RealClock{}, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	pod := using("example.org/a:1")
	image, _, failure := m.Ensure(ctx, pod, &pod.Spec.Containers[0])
	if failure != nil {
		t.Fatalf("%+v", failure)
	}
	if e := <-events.Events; e != `Normal Pulling Pulling image "example.org/a:1"` {
		t.Errorf("event %s", e)
	}
	if list := m.List(ctx); image.Id == "" || len(list) != 1 {
		t.Fatalf("image %+v, of %+v", image, list)
	}

	near.pods = []*corev1.Pod{pod}
	if err := m.DeleteUnused(ctx); err != nil || r.Calls("RemoveImage") != 0 {
		t.Errorf("an image that a pod uses: %v, %d removed", err, r.Calls("RemoveImage"))
	}
	near.pods = nil
	if err := m.DeleteUnused(ctx); err != nil || r.Calls("RemoveImage") != 1 {
		t.Errorf("an image that nobody uses: %v, %d removed", err, r.Calls("RemoveImage"))
	}
	var d dto.Metric
	if err := m.Metrics.removed.WithLabelValues(forSpace).Write(&d); err != nil || d.GetCounter().GetValue() != 1 {
		t.Errorf("%v images counted as removed, %v", d.GetCounter().GetValue(), err)
	}
}

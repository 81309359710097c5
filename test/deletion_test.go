// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package test

import (
	"context"
	"errors"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/mortise-dev/mortise/embed"
	"github.com/mortise-dev/mortise/embed/embedtest"
	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension/admission"
	"github.com/mortise-dev/mortise/resource"
)

// meddler writes a pod's status when its deletion has been told and not carried out, as a scheduler or a node may; and then makes
// another pod of that name, where it is asked to.
type meddler struct {
	client   kubernetes.Interface
	recreate bool
	once     sync.Once
}

func (*meddler) Name() string { return "Meddler" }

func (m *meddler) Validate(ctx context.Context, _ resource.Backend, a *admission.Attributes) (err error) {
	if old, ok := a.Old.(*corev1.Pod); a.Operation == "DELETE" && ok && old.DeletionTimestamp != nil {
		m.once.Do(func() {
			pods := m.client.CoreV1().Pods(old.Namespace)
			_, err = pods.Patch(ctx, old.Name, types.MergePatchType, []byte(`{"status":{"message":"meanwhile"}}`), metav1.PatchOptions{}, "status")
			if m.recreate {
				_, more := pods.Create(ctx, meddled(), metav1.CreateOptions{})
				err = errors.Join(err, more)
			}
		})
	}
	return err
}

func meddled() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
}

// TestDeletionEndedByAnother: a pod whose grace is over goes with the next write to it. A deletion that is overtaken so has done what it
// was asked for, and says so; it leaves another pod alone that has the name by then.
func TestDeletionEndedByAnother(t *testing.T) {
	for name, recreate := range map[string]bool{"gone": false, "made again": true} {
		t.Run(name, func(t *testing.T) {
			m := &meddler{recreate: recreate}
			cluster := embedtest.Start(t, &embed.Server{
				Controllers: []string{"none"}, Extensions: embed.Extensions{Admission: []admission.Plugin{m}},
				APIServer: options.APIServer{Admission: options.Admission{Disable: []string{"ServiceAccount"}}},
			})
			m.client = cluster.Client()
			pods := m.client.CoreV1().Pods(metav1.NamespaceDefault)
			made, err := pods.Create(t.Context(), meddled(), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if err := pods.Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
				t.Errorf("the deletion says %v", err)
			}
			list, err := pods.List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if want := map[bool]int{false: 0, true: 1}[recreate]; len(list.Items) != want {
				t.Fatalf("%d pods are there, want %d", len(list.Items), want)
			}
			if recreate && list.Items[0].UID == made.UID {
				t.Error("the pod that was deleted is there")
			}
		})
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package disruption

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// TestRefusedStatus has the server refuse a status, say yes to the word that it was refused, and refuse again: nothing else happens to the
// budget, and it has its status in the end.
func TestRefusedStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one := intstr.FromInt32(1)
		client := fake.NewClientset(&policyv1.PodDisruptionBudget{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b", Generation: 3},
			Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: &one,
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
		})
		tries := 0
		client.PrependReactor("update", "poddisruptionbudgets", func(action clienttesting.Action) (bool, runtime.Object, error) {
			update, ok := action.(clienttesting.UpdateAction)
			if !ok {
				return false, nil, nil
			}
			b, ok := update.GetObject().(*policyv1.PodDisruptionBudget)
			if !ok {
				return false, nil, nil
			}
			if b.Status.ObservedGeneration == 3 {
				if tries++; tries <= 3 {
					return true, nil, apierrors.NewInternalError(errors.New("not today"))
				}
			}
			return false, nil, nil
		})
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
			}, controllers.Options{})
		}()
		time.Sleep(time.Minute)
		b, err := client.PolicyV1().PodDisruptionBudgets("ns").Get(ctx, "b", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if b.Status.ObservedGeneration != 3 || b.Status.DesiredHealthy != 1 {
			t.Errorf("after %d tries: %+v", tries, b.Status)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Hour) // whatever timers are left run out
	})
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package endpoints

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/utils/clock"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{}, Controller())
}

func TestBatch(t *testing.T) {
	controllertest.Run(t, "testdata/batch/*.txtar", controllers.Options{},
		controllertest.Configured(t, Controller(), "endpoint-updates-batch-period=5s"))
}

// TestLeftover: Endpoints whose service went before the controller came are deleted, unless they serve as a lock.
func TestLeftover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset(
			&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "left"}},
			&corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: "lock",
				Annotations: map[string]string{"control-plane.alpha.kubernetes.io/leader": "{}"}}},
		)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- controllers.RunWith(ctx, []controllers.Controller{Controller()}, &controllers.Deps{
				Client: client, Discovery: client.Discovery(), Metadata: metadatafake.NewSimpleMetadataClient(runtime.NewScheme()),
			}, controllers.Options{Clock: clock.RealClock{}})
		}()
		synctest.Wait()
		list, err := client.CoreV1().Endpoints("n").List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 || list.Items[0].Name != "lock" {
			t.Errorf("left: %v, %v", list, err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		<-time.After(time.Minute) // whatever timers are left in client-go run out
	})
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package deployment

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
	"github.com/mortise-dev/mortise/internal/controllers/replicaset"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/rolling.txtar", controllers.Options{}, Controller())
	controllertest.Run(t, "testdata/all.txtar", controllers.Options{}, Controller())
	controllertest.Run(t, "testdata/together.txtar", controllers.Options{}, Controller(), replicaset.Controller())
}

// TestBehind: nothing is taken from, or given to, a replica set whose status is from before it was last told to shrink.
func TestBehind(t *testing.T) {
	d, sets := rollingOut(3, 4)
	if out := decide(observed{deployment: d, sets: sets, now: time.Unix(0, 0)}); len(out.writes) != 1 || out.writes[0].set.Name != "web-b" ||
		len(out.writes[0].events) != 0 {
		t.Errorf("writes %v, want the revision of web-b alone", out.writes)
	}
}

// TestTwoSteps: a replica set that gives up what is not available, and then some of what is, is written once and told of twice.
func TestTwoSteps(t *testing.T) {
	d, sets := rollingOut(4, 3)
	out := decide(observed{deployment: d, sets: sets, now: time.Unix(0, 0)})
	var written []string
	for _, w := range out.writes {
		if w.set.Name == "web-a" {
			written = append(written, w.events...)
		}
	}
	want := []string{"Scaled down replica set web-a from 4 to 3", "Scaled down replica set web-a from 3 to 1"}
	if diff := cmp.Diff(want, written); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}

// rollingOut is a deployment of 4, two of which may be unavailable, with an old replica set and a new one of 1.
func rollingOut(old, available int32) (*appsv1.Deployment, []*appsv1.ReplicaSet) {
	template := func(image string) corev1.PodTemplateSpec {
		return corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image}}}}
	}
	set := func(name, image string, n, available int32) *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name),
				Annotations: map[string]string{annotationDesired: "4", annotationMax: "5"}},
			Spec:   appsv1.ReplicaSetSpec{Replicas: &n, Template: template(image)},
			Status: appsv1.ReplicaSetStatus{Replicas: n, AvailableReplicas: available},
		}
	}
	four, none, two := int32(4), intstr.FromInt32(0), intstr.FromInt32(2)
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{
		Replicas: &four, Template: template("two"), Strategy: appsv1.DeploymentStrategy{
			Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &none, MaxUnavailable: &two},
		},
	}}, []*appsv1.ReplicaSet{set("web-a", "one", old, available), set("web-b", "two", 1, 1)}
}

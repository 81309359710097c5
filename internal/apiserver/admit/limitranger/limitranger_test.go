// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package limitranger_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	quantity "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/limitranger"
	"github.com/mortise-dev/mortise/internal/apiserver/feed"
	"github.com/mortise-dev/mortise/resource"
)

func TestScenarios(t *testing.T) { admittest.Run(t, limitranger.New()) }

// TestFollows: a LimitRange counts from its commit on, and no longer when it is gone.
func TestFollows(t *testing.T) {
	p := limitranger.New()
	follower := p.(admit.Follower)
	ranges := schema.GroupResource{Resource: "limitranges"}
	if got := follower.Follows(); len(got) != 1 || got[0] != ranges {
		t.Fatalf("follows %v", got)
	}
	limit := &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "r", Namespace: "team"}}
	limit.Spec.Limits = []corev1.LimitRangeItem{{Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{"cpu": quantity.MustParse("1")}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "team"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	for _, stored := range []resource.Object{nil, limit, nil} {
		if err := follower.Apply(t.Context(), &feed.Change{Resource: ranges, Namespace: "team", Name: "r", Object: stored}); err != nil {
			t.Fatal(err)
		}
		err := admit.Chain{p}.Validate(t.Context(), nil, &admit.Attributes{
			Operation: admit.Create, Namespace: "team", Object: pod, Descriptor: &resource.Descriptor{Resource: "pods"},
		})
		if (err != nil) != (stored != nil) {
			t.Errorf("with a LimitRange: %t: %v", stored != nil, err)
		}
	}
}

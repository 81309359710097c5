// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package defaulttolerationseconds_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/defaulttolerationseconds"
	"github.com/mortise-dev/mortise/resource"
)

func TestScenarios(t *testing.T) {
	admittest.Run(t, defaulttolerationseconds.New(defaulttolerationseconds.Usually()))
}

// TestOptions: both times are the options'.
func TestOptions(t *testing.T) {
	pod := &corev1.Pod{}
	a := &admit.Attributes{Operation: admit.Create, Descriptor: &resource.Descriptor{Resource: "pods"}, Object: pod}
	p := defaulttolerationseconds.New(defaulttolerationseconds.Options{NotReady: 5, Unreachable: -1})
	if err := p.(admit.Mutator).Mutate(t.Context(), nil, a); err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	for _, t := range pod.Spec.Tolerations {
		got[t.Key] = *t.TolerationSeconds
	}
	if d := cmp.Diff(map[string]int64{corev1.TaintNodeNotReady: 5, corev1.TaintNodeUnreachable: -1}, got); d != "" {
		t.Errorf("seconds (-want +got):\n%s", d)
	}
}

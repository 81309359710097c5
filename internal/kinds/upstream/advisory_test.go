// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"math/rand"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/validate"

	"github.com/mortise-dev/mortise/internal/kinds/kindstest"
	"github.com/mortise-dev/mortise/resource"
)

// TestAdvisoryRules checks that the declared rules of the kinds whose rules do not run report nothing of any object, and that there are
// such kinds and others.
func TestAdvisoryRules(t *testing.T) {
	if !advisory(&corev1.ConfigMap{}) || advisory(&corev1.Pod{}) || advisory(&corev1.Secret{}) {
		t.Error("the rules of ConfigMaps are advisory, some of those of pods and Secrets are enforced")
	}
	kinds, broken := 0, 0
	for _, of := range scheme().AllKnownTypes() {
		obj, ok := reflect.New(of).Interface().(resource.Object)
		if !ok || !advisory(obj) {
			continue
		}
		kinds++
		for seed := range int64(20) {
			all := [2]resource.Object{}
			for i := range all {
				all[i] = reflect.New(of).Interface().(resource.Object)
				kindstest.Fill(all[i], rand.NewSource(2*seed+int64(i)))
				all[i].SetGeneration(-seed) // breaks a rule, which is advisory
			}
			created, updated := scheme().Validate(t.Context(), nil, all[0]), scheme().ValidateUpdate(t.Context(), nil, all[0], all[1])
			broken += len(created)
			if errs := validate.FilterEnforcedDeclarativeErrors(t.Context(), append(created, updated...), true); len(errs) > 0 {
				t.Errorf("%v: %v", of, errs)
			}
		}
	}
	if kinds < 10 || broken == 0 {
		t.Errorf("%d kinds, and %d errors that are not enforced: too few", kinds, broken)
	}
}

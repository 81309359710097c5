// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package storageversionmigrator

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/controllertest"
)

func TestScenarios(t *testing.T) {
	controllertest.Run(t, "testdata/*.txtar", controllers.Options{}, Controller())
}

// TestOutcome: storedVersions shrink after a success only, and only if the definition is still what was migrated.
func TestOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		observed  int64
		succeeded bool
		reason    string
		stored    int
	}{
		"succeeded":                {2, true, "MigrationSucceeded", 1},
		"succeeded, but it is new": {1, true, "MigrationSucceeded", 0},
		"failed":                   {2, false, "MigrationFailed", 0},
	} {
		crd := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Generation: 2}}
		crd.Spec.Versions = []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}, {Name: "v2", Storage: true}}
		crd.Status.Conditions = []apiextensionsv1.CustomResourceDefinitionCondition{{Type: apiextensionsv1.StorageMigrating,
			ObservedGeneration: c.observed}}
		got := outcome(crd, c.succeeded)
		if x := got.Conditions[0]; x.Reason != c.reason || x.Status != apiextensionsv1.ConditionFalse || x.ObservedGeneration != 2 ||
			len(got.StoredVersions) != c.stored {
			t.Errorf("%s: %v", name, got)
		}
	}
}

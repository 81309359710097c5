// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package builtin

import (
	"testing"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
)

// Of each plug-in that changes objects it is known which, so that traces of writes cost little.
func TestTracesKnowMutators(t *testing.T) {
	chain, err := Admission(AdmissionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var mutators []string
	for _, p := range chain {
		if _, ok := p.(admit.Mutator); ok {
			mutators = append(mutators, p.Name())
		}
	}
	if len(mutators) < 5 {
		t.Fatalf("there are only the mutators %v", mutators)
	}
	if unknown := explain.Foreign(mutators); len(unknown) > 0 {
		t.Errorf("package explain does not know what these change: %v", unknown)
	}
}

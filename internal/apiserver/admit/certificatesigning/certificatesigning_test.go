// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package certificatesigning

import (
	"context"
	"flag"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
)

var _ = flag.Bool("update", false, "write the golden files")

// TestScenarios: the user may sign for example.com/a by name, and for all signers of example.org.
func TestScenarios(t *testing.T) {
	p := New()
	err := p.(admit.Hosted).Join(&admit.Host{Authorize: func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
		if a.GetVerb() == "sign" && a.GetAPIGroup() == "certificates.k8s.io" && a.GetResource() == "signers" && (a.GetName() == "example.com/a" || a.GetName() == "example.org/*") {
			return authorizer.DecisionAllow, "", nil
		}
		return authorizer.DecisionNoOpinion, "", nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	admittest.Run(t, p)
}

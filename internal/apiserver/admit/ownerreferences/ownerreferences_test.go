// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package ownerreferences_test

import (
	"context"
	"testing"

	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/admittest"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/ownerreferences"
	"github.com/mortise-dev/mortise/resource"
)

// TestScenarios: the user may do anything to what is called mine in the namespace.
func TestScenarios(t *testing.T) {
	p := ownerreferences.New()
	err := p.(admit.Hosted).Join(&admit.Host{
		Kinds: func() []*resource.Descriptor {
			v1 := []resource.Version{{Name: "v1"}}
			return []*resource.Descriptor{
				{Resource: "pods", Kind: "Pod", Namespaced: true, Versions: v1}, {Resource: "nodes", Kind: "Node", Versions: v1},
			}
		},
		Authorize: func(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
			if a.GetName() == "mine" && a.GetNamespace() == "ns" {
				return authorizer.DecisionAllow, "", nil
			}
			return authorizer.DecisionNoOpinion, a.GetVerb() + " " + a.GetResource() + "/" + a.GetSubresource() + " of " + a.GetNamespace(), nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	admittest.Run(t, p)
}

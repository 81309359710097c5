// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authorizer_test

import (
	"context"
	"fmt"

	"k8s.io/apiserver/pkg/authentication/user"
	kubernetes "k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/mortise-dev/mortise/extension/authorizer"
)

// guards refuses deletions in the namespace vault, whatever RBAC says, and leaves all other requests to the other authorizers.
func guards(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetNamespace() == "vault" && a.GetVerb() == "delete" {
		return authorizer.Deny, "the vault is sealed", nil
	}
	return authorizer.NoOpinion, "", nil
}

// An authorizer allows a request, denies it, or has no opinion. ExampleExtensions_authenticators of package embed runs one in a cluster.
func Example() {
	var a authorizer.Authorizer = authorizer.Func(guards)
	for _, verb := range []string{"delete", "get"} {
		decision, reason, err := a.Authorize(context.Background(), kubernetes.AttributesRecord{
			User: &user.DefaultInfo{Name: "ali"}, Verb: verb, Namespace: "vault", Resource: "secrets", Name: "gold", ResourceRequest: true,
		})
		fmt.Printf("%s: %v %q %v\n", verb, decision == authorizer.Deny, reason, err)
	}
	// Output:
	// delete: true "the vault is sealed" <nil>
	// get: false "" <nil>
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"context"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// MayFor reports whether a user may do verb (approve, sign, attest) for a signer of certificates: for it by name, or for
// all signers of its domain.
func (f Authorizer) MayFor(ctx context.Context, u user.Info, verb, signer string) bool {
	domain, _, _ := strings.Cut(signer, "/")
	for _, name := range []string{signer, domain + "/*"} {
		d, _, err := f(ctx, authorizer.AttributesRecord{
			User: u, Verb: verb, Name: name, APIGroup: "certificates.k8s.io", APIVersion: "*", Resource: "signers", ResourceRequest: true,
		})
		if err == nil && d == authorizer.DecisionAllow {
			return true
		}
	}
	return false
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	authenticationv1 "k8s.io/api/authentication/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/authentication/validation"
)

// TokenRequest validates a request for a service account's token.
func TokenRequest(r *authenticationv1.TokenRequest) field.ErrorList {
	return validation.ValidateTokenRequest(internal[*authentication.TokenRequest](r))
}

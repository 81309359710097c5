// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration/validation"

	"github.com/mortise-dev/mortise/resource"
)

// APIService validates the registration of an API server. The kind has no declared rules.
func APIService() Checks {
	update := func(f func(context.Context, *apiregistration.APIService, *apiregistration.APIService) field.ErrorList) UpdateCheck {
		return func(ctx context.Context, obj, old resource.Object) field.ErrorList {
			return f(ctx, internal[*apiregistration.APIService](obj), internal[*apiregistration.APIService](old))
		}
	}
	return Checks{
		Create: func(ctx context.Context, obj resource.Object) field.ErrorList {
			return validation.ValidateAPIService(ctx, internal[*apiregistration.APIService](obj))
		},
		Update: update(validation.ValidateAPIServiceUpdate),
		Status: update(validation.ValidateAPIServiceStatusUpdate),
	}
}

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

// APIService validates the registration of an API server.
func APIService() Checks {
	update := func(f func(context.Context, *apiregistration.APIService, *apiregistration.APIService) field.ErrorList, sub ...string) UpdateCheck {
		return func(ctx context.Context, obj, old resource.Object) field.ErrorList {
			errs := f(ctx, internal[apiregistration.APIService](obj), internal[apiregistration.APIService](old))
			return declared{}.run(ctx, obj, old, errs, sub...)
		}
	}
	return Checks{
		Create: func(ctx context.Context, obj resource.Object) field.ErrorList {
			errs := validation.ValidateAPIService(ctx, internal[apiregistration.APIService](obj))
			return declared{}.run(ctx, obj, nil, errs)
		},
		Update: update(validation.ValidateAPIServiceUpdate),
		Status: update(validation.ValidateAPIServiceStatusUpdate, "status"),
	}
}

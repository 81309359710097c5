// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package resource

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Awaiter is an optional interface of a [Backend]: it waits for an object that is about to appear.
type Awaiter interface {
	// Await returns the hub object, shared and read-only, as soon as it exists, or the error of ctx.
	Await(ctx context.Context, r schema.GroupResource, namespace, name string) (Object, error)
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import "context"

// nodeKey is the context key of the node that makes a request.
type nodeKey struct{}

// asNode marks requests that a node makes for itself.
func asNode(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, nodeKey{}, name)
}

// NodeFrom returns the node that makes a request; empty for requests on behalf of all nodes, which read pods. A transport uses it to give
// each node its own identity.
func NodeFrom(ctx context.Context) (name string, ok bool) {
	name, ok = ctx.Value(nodeKey{}).(string)
	return name, ok
}

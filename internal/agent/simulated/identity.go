// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package simulated

import "context"

// nodeKey is under which a request's context says which node makes it.
type nodeKey struct{}

// asNode is for what a node asks by itself.
func asNode(ctx context.Context, name string) context.Context {
	return context.WithValue(ctx, nodeKey{}, name)
}

// NodeFrom is the node that makes a request; none makes those that are for all of them, which read pods. A transport that
// gives each node an identity of its own asks this.
func NodeFrom(ctx context.Context) (name string, ok bool) {
	name, ok = ctx.Value(nodeKey{}).(string)
	return name, ok
}

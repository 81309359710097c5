// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package admit

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/internal/apiserver/feed"
)

// Follower is a plug-in that is configured by objects. The server's feed applies each change of them before it answers
// the write, so that the next request sees it. The feed calls Load and Apply one at a time.
type Follower interface {
	Plugin
	Follows() []schema.GroupResource
	// Load replaces the plug-in's state with what is stored. The feed calls it after Join, before the first request,
	// and again after it missed changes.
	Load(ctx context.Context, stored feed.Lister) error
	// Apply applies a change of one object of a followed resource.
	Apply(ctx context.Context, c *feed.Change) error
}

// Runner is a plug-in with background work. Run blocks until ctx ends.
type Runner interface {
	Plugin
	Run(ctx context.Context) error
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package alwaysdeny is the AlwaysDeny plug-in: it rejects every write. It is upstream's, deprecated, and off by default.
package alwaysdeny

import (
	"context"
	"errors"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "AlwaysDeny" }

// Join logs that the plug-in is deprecated.
func (plugin) Join(h *admit.Host) error {
	h.Log.Warn("Admission plug-in is deprecated", "plugin", "AlwaysDeny")
	return nil
}

// Mutate rejects every request.
func (plugin) Mutate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	return refuse(a)
}

// Validate rejects every request.
func (plugin) Validate(_ context.Context, _ resource.Backend, a *admit.Attributes) error {
	return refuse(a)
}

func refuse(a *admit.Attributes) error {
	return admit.Forbidden(a, errors.New("admission control is denying all modifications")) // upstream's words
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package alwaysadmit is the AlwaysAdmit plug-in: it admits every request. It is upstream's, deprecated, and off by
// default.
package alwaysadmit

import (
	"context"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/resource"
)

// New makes the plug-in.
func New() admit.Plugin { return plugin{} }

type plugin struct{}

func (plugin) Name() string { return "AlwaysAdmit" }

// Join logs that the plug-in is deprecated.
func (plugin) Join(h *admit.Host) error {
	h.Log.Warn("Admission plug-in is deprecated", "plugin", "AlwaysAdmit")
	return nil
}

// Validate admits every request.
func (plugin) Validate(context.Context, resource.Backend, *admit.Attributes) error { return nil }

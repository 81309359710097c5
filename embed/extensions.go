// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/resource"
)

// Extensions are what third parties plug into a cluster as Go code. They come after the built-in ones.
type Extensions struct {
	// Kinds are served beside the built-in ones.
	Kinds []*resource.Descriptor
	// Admission plug-ins run after the built-in ones, mutating and validating each in their turn.
	Admission []AdmissionPlugin
	// Controllers run beside the built-in ones, and are selected by name like them.
	Controllers []Controller
}

// The contracts of extensions in Go, under names that other modules can write.
type (
	// AdmissionPlugin is an [AdmissionMutator], an [AdmissionValidator], or both.
	AdmissionPlugin = admit.Plugin
	// AdmissionMutator changes objects on their way in.
	AdmissionMutator = admit.Mutator
	// AdmissionValidator refuses objects on their way in.
	AdmissionValidator = admit.Validator
	// AdmissionAttributes are what both know of a request.
	AdmissionAttributes = admit.Attributes

	// Controller is a control loop, run with the built-in ones on the caches that all share.
	Controller = controllers.Controller
	// ControllerDeps are what it works with.
	ControllerDeps = controllers.Deps
	// ControllerRunner is one incarnation of it.
	ControllerRunner = controllers.Runner
)

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/resource"
)

// Extensions are what third parties plug into a cluster as Go code. They come after the built-in ones.
type Extensions struct {
	// Kinds are served beside the built-in ones.
	Kinds []*resource.Descriptor
	// Admission plug-ins run after the built-in ones, mutating and validating each in their turn; quota alone is charged after
	// them. They are called by many requests at once. One that is [AdmissionConfigured] is given what the
	// AdmissionConfiguration says under its name, one that is [AdmissionHosted] the server that it works in;
	// --disable-admission-plugins takes their names too.
	Admission []AdmissionPlugin
	// Controllers run beside the built-in ones, and are selected by name like them.
	Controllers []Controller
	// SchedulerPlugins are plug-ins of the scheduler by name, written to k8s.io/kube-scheduler/framework. Those take part that
	// a profile of the KubeSchedulerConfiguration enables; their arguments come as it has them, a runtime.Unknown of JSON.
	SchedulerPlugins map[string]SchedulerPlugin
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
	// AdmissionConfigured is one that is configured by the AdmissionConfiguration.
	AdmissionConfigured = admit.Configured
	// AdmissionHosted is one that wants to know the server that it works in, an [AdmissionHost].
	AdmissionHosted = admit.Hosted
	// AdmissionHost is that server: who may do what, which kinds there are, the ledger by which webhooks are called.
	AdmissionHost = admit.Host

	// Controller is a control loop, run with the built-in ones on the caches that all share.
	Controller = controllers.Controller
	// ControllerSetting is a setting that it declares; ControllerSyncs is that of how many objects it syncs concurrently.
	ControllerSetting = controllers.Setting
	// ControllerSyncs is the setting of concurrent syncs.
	ControllerSyncs = controllers.Syncs
	// ControllerDeps are what it works with.
	ControllerDeps = controllers.Deps
	// ControllerRunner is one incarnation of it.
	ControllerRunner = controllers.Runner

	// SchedulerPlugin makes a plug-in of the scheduler: it is the factory function that kube-scheduler's app.WithPlugin takes.
	SchedulerPlugin = profile.Factory
)

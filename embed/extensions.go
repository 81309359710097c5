// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/scheduler/profile"
	"github.com/mortise-dev/mortise/resource"
)

// Extensions are Go extensions of a cluster. They come after the built-in parts.
type Extensions struct {
	// Kinds are served beside the built-in ones.
	Kinds []*resource.Descriptor
	// Admission plug-ins run after the built-in ones, first all mutating and then all validating ones; only the quota plug-in comes after
	// them. Several requests may call a plug-in concurrently. An [AdmissionConfigured] gets its part of the AdmissionConfiguration, an
	// [AdmissionHosted] its server; --disable-admission-plugins takes their names too.
	Admission []AdmissionPlugin
	// Controllers run beside the built-in ones. The same setting selects them by name.
	Controllers []Controller
	// SchedulerPlugins are the factories of scheduler plug-ins by name, written to k8s.io/kube-scheduler/framework. A plug-in runs if a
	// profile of the KubeSchedulerConfiguration enables it; its arguments are a runtime.Unknown with the configuration's JSON.
	SchedulerPlugins map[string]SchedulerPlugin
}

// The interfaces of Go extensions, under names that other modules can import.
type (
	// AdmissionPlugin is an [AdmissionMutator], an [AdmissionValidator], or both.
	AdmissionPlugin = admit.Plugin
	// AdmissionMutator changes objects before they are stored.
	AdmissionMutator = admit.Mutator
	// AdmissionValidator refuses invalid objects.
	AdmissionValidator = admit.Validator
	// AdmissionAttributes describe a request.
	AdmissionAttributes = admit.Attributes
	// AdmissionConfigured is a plug-in with a part in the AdmissionConfiguration.
	AdmissionConfigured = admit.Configured
	// AdmissionHosted is a plug-in that gets its server, an [AdmissionHost].
	AdmissionHosted = admit.Hosted
	// AdmissionHost is the server: its authorizer, its kinds, the ledger that calls webhooks.
	AdmissionHost = admit.Host

	// Controller is a control loop, run with the built-in ones on shared caches.
	Controller = controllers.Controller
	// ControllerSetting is a setting that a controller declares.
	ControllerSetting = controllers.Setting
	// ControllerSyncs is the setting for a controller's concurrent syncs.
	ControllerSyncs = controllers.Syncs
	// ControllerDeps are a controller's clients and caches.
	ControllerDeps = controllers.Deps
	// ControllerRunner is one incarnation of a controller.
	ControllerRunner = controllers.Runner

	// SchedulerPlugin creates a scheduler plug-in: it is the factory function of kube-scheduler's app.WithPlugin.
	SchedulerPlugin = profile.Factory
)

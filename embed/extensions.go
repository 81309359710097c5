// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"context"
	"net"

	"github.com/mortise-dev/mortise/extension/admission"
	"github.com/mortise-dev/mortise/extension/authenticator"
	"github.com/mortise-dev/mortise/extension/authorizer"
	"github.com/mortise-dev/mortise/extension/controller"
	"github.com/mortise-dev/mortise/extension/scheduler"
	"github.com/mortise-dev/mortise/internal/cluster"
	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/resource"
)

// Extensions are Go extensions of a cluster. They come after the built-in parts. Their contracts are the packages below extension.
type Extensions struct {
	// Kinds are served beside the built-in ones.
	Kinds []*resource.Descriptor
	// Admission plug-ins run after the built-in ones, first all mutating and then all validating ones; only the quota plug-in comes after
	// them. An [admission.Configured] gets its part of the AdmissionConfiguration, an [admission.Hosted] its server;
	// --disable-admission-plugins takes their names too.
	Admission []admission.Plugin
	// Authenticators come after the built-in ones, and before anonymous access.
	Authenticators []authenticator.Authenticator
	// Authorizers are asked after the group system:masters is allowed everything, and before the authorizers of the settings.
	Authorizers []authorizer.Authorizer
	// Controllers run beside the built-in ones. The same setting selects them by name.
	Controllers []controller.Controller
	// SchedulerPlugins are the factories of scheduler plug-ins by name. A plug-in runs if a profile of the KubeSchedulerConfiguration
	// enables it.
	SchedulerPlugins map[string]scheduler.Factory
	// EtcdProtocol serves the store where APIServer.Etcd.Listen says, until its context ends: Serve of package embed/etcdprotocol. Nil: this
	// program does not, and does not depend on what that needs.
	EtcdProtocol func(ctx context.Context, l net.Listener, o EtcdProtocol) error
}

// EtcdProtocol is what [Extensions.EtcdProtocol] serves, and how.
type EtcdProtocol = cluster.EtcdProtocol

// settings returns the extensions as the assembly takes them.
func (e *Extensions) settings() cluster.Extensions {
	return cluster.Extensions{
		Kinds: e.Kinds, Admission: e.Admission, Authenticators: e.Authenticators, Authorizers: e.Authorizers,
		Controllers: internalControllers(e.Controllers), SchedulerPlugins: e.SchedulerPlugins, EtcdProtocol: e.EtcdProtocol,
	}
}

func internalControllers(of []controller.Controller) (all []controllers.Controller) {
	for _, c := range of {
		all = append(all, controllers.Extension(c))
	}
	return all
}

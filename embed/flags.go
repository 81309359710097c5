// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension/controller"
	"github.com/mortise-dev/mortise/internal/cluster"
)

// AddFlags binds the settings of an API server to flags, under the names of kube-apiserver and kube-controller-manager. It also binds the
// settings that the built-in controllers and the controllers in more declare.
func AddFlags(f *pflag.FlagSet, o *options.APIServer, more ...controller.Controller) {
	cluster.AddFlags(f, o, internalControllers(more))
}

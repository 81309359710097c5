// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package embed

import (
	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/cluster"
)

// AddFlags binds the settings of an API server to flags, under kube-apiserver's and kube-controller-manager's names, and those that
// controllers declare: the built-in ones, and more.
func AddFlags(f *pflag.FlagSet, o *options.APIServer, more ...Controller) {
	cluster.AddFlags(f, o, more)
}

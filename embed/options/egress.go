// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Egress configures proxies for the API server's outgoing connections.
type Egress struct {
	// ConfigFile is an EgressSelectorConfiguration; empty: all connections are direct.
	ConfigFile string
}

func (o *Egress) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ConfigFile, "egress-selector-config-file", o.ConfigFile,
		"File of an EgressSelectorConfiguration: the proxies for connections to nodes, pods, services and webhooks.")
}

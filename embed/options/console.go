// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Console configures the web page below /console/.
type Console struct {
	// Enabled serves the page. The zero value does not; `mortise up` does by default when it listens on loopback.
	Enabled bool
	// Hosts are names under which clients reach the server, beside addresses, localhost and the names in the serving certificates:
	// those of proxies in front of it.
	Hosts []string
}

func (o *Console) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.Enabled, "console", o.Enabled,
		"Serve the console, a web page, below /console/. Default: true if --listen is an address of loopback.")
	f.StringSliceVar(&o.Hosts, "console-hosts", o.Hosts,
		"Names of hosts under which browsers reach the console, beside addresses, localhost and the names in the serving certificates.")
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Pods configures what pods may request, for all users.
type Pods struct {
	// AllowPrivileged allows privileged containers; nil: allowed in a cluster with controllers and nodes, not in a bare API server.
	AllowPrivileged *bool
}

func (o *Pods) addFlags(f *pflag.FlagSet) {
	addSwitch(f, &o.AllowPrivileged, "allow-privileged", true,
		"Allow privileged containers. Default: true, but false with --controllers none.")
}

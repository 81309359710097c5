// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Compatibility is which versions of Kubernetes the server emulates, and which it is compatible with. It emulates its own version and no
// other; the server refuses other values.
type Compatibility struct {
	// EmulatedVersions and MinCompatibilityVersions are MAJOR.MINOR or kube=MAJOR.MINOR; empty: the server's own version, and the one before.
	EmulatedVersions, MinCompatibilityVersions []string
	// ForwardCompatible and RuntimeConfigForwardCompatible serve APIs that are newer than the emulated version. There are none.
	ForwardCompatible, RuntimeConfigForwardCompatible bool
}

func (o *Compatibility) addFlags(f *pflag.FlagSet) {
	f.StringSliceVar(&o.EmulatedVersions, "emulated-version", o.EmulatedVersions,
		"Version of Kubernetes to emulate, as 1.37 or kube=1.37. The server emulates its own version and refuses others.")
	f.StringSliceVar(&o.MinCompatibilityVersions, "min-compatibility-version", o.MinCompatibilityVersions,
		"Oldest version of control plane components to be compatible with, as 1.36 or kube=1.36. The server refuses others.")
	f.BoolVar(&o.ForwardCompatible, "emulation-forward-compatible", o.ForwardCompatible,
		"Serve APIs that are newer than the emulated version. There are none: the server emulates its own version.")
	f.BoolVar(&o.RuntimeConfigForwardCompatible, "runtime-config-emulation-forward-compatible", o.RuntimeConfigForwardCompatible,
		"Let --runtime-config enable APIs that are newer than the emulated version. There are none: the server emulates its own version.")
}

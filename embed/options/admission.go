// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Admission says what changes and checks every write.
type Admission struct {
	// ConfigFile is an AdmissionConfiguration: what plug-ins are configured by. Empty: nothing.
	ConfigFile string
	// Enable and Disable are names of plug-ins, beside those that are on by themselves. Their order does not matter.
	Enable, Disable []string
	// Initializers serves InitializerConfiguration, and lets new objects wait for those whom it names.
	Initializers bool
}

func (o *Admission) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ConfigFile, "admission-control-config-file", o.ConfigFile, "file of an AdmissionConfiguration: credentials and manifests of webhooks, manifests of policies")
	f.StringSliceVar(&o.Enable, "enable-admission-plugins", o.Enable, "admission plug-ins that are not on by themselves")
	f.BoolVar(&o.Initializers, "enable-initializers", o.Initializers, "serve InitializerConfiguration of extension.mortise.dev, and hide new objects until the initializers that it names are through with them")
	f.StringSliceVar(&o.Disable, "disable-admission-plugins", o.Disable, "admission plug-ins that are off")
}

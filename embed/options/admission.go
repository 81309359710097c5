// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"strconv"

	"github.com/spf13/pflag"
)

// Admission configures the admission plug-ins and webhooks.
type Admission struct {
	// ConfigFile is an AdmissionConfiguration with the plug-ins' configurations. Empty: none.
	ConfigFile string
	// Enable and Disable are names of plug-ins, changing the default set. Their order does not matter.
	Enable, Disable []string
	// Initializers serves InitializerConfiguration; new objects wait for the initializers that it names.
	Initializers bool
	// NotReadySeconds and UnreachableSeconds are the default time for which a pod tolerates a node that is not ready or not reachable; nil:
	// five minutes.
	NotReadySeconds, UnreachableSeconds *int64
}

func (o *Admission) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ConfigFile, "admission-control-config-file", o.ConfigFile,
		"File of an AdmissionConfiguration, which configures admission plug-ins.")
	f.StringSliceVar(&o.Enable, "enable-admission-plugins", o.Enable,
		"List of admission plug-ins to enable, beside those that are enabled by default. Order does not matter.")
	f.BoolVar(&o.Initializers, "enable-initializers", o.Initializers,
		"Serve InitializerConfiguration of extension.mortise.dev. New objects stay hidden until the initializers that it names have finished.")
	f.StringSliceVar(&o.Disable, "disable-admission-plugins", o.Disable,
		"List of admission plug-ins to disable, although they are enabled by default. Order does not matter.")
	f.Var(&seconds{&o.NotReadySeconds}, "default-not-ready-toleration-seconds",
		"Seconds for which a pod without such a toleration tolerates the taint not-ready:NoExecute.")
	f.Var(&seconds{&o.UnreachableSeconds}, "default-unreachable-toleration-seconds",
		"Seconds for which a pod without such a toleration tolerates the taint unreachable:NoExecute.")
}

// seconds is a flag of whole seconds; nil, its initial value, means five minutes.
type seconds struct{ to **int64 }

func (v *seconds) Set(s string) error {
	n, err := strconv.ParseInt(s, 0, 64)
	if err != nil {
		return err
	}
	*v.to = &n
	return nil
}

func (v *seconds) String() string {
	if v.to == nil || *v.to == nil {
		return "300"
	}
	return strconv.FormatInt(**v.to, 10)
}

func (v *seconds) Type() string { return "int" }

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Encryption configures encryption at rest.
type Encryption struct {
	// ConfigFile is an EncryptionConfiguration; empty: no encryption.
	ConfigFile string
	// Reload reads the file again when it changes.
	Reload bool
}

func (o *Encryption) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ConfigFile, "encryption-provider-config", o.ConfigFile,
		"File of an EncryptionConfiguration: which resources are encrypted at rest, and by which providers.")
	f.BoolVar(&o.Reload, "encryption-provider-config-automatic-reload", o.Reload,
		"Reload the file of --encryption-provider-config when it changes. An invalid file changes nothing.")
}

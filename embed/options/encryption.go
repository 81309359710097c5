// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Encryption says how objects are encrypted at rest.
type Encryption struct {
	// ConfigFile is an EncryptionConfiguration; empty: nothing is encrypted.
	ConfigFile string
	// Reload follows the file.
	Reload bool
}

func (o *Encryption) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ConfigFile, "encryption-provider-config", o.ConfigFile, "file of an EncryptionConfiguration: which resources are encrypted at rest, and by what")
	f.BoolVar(&o.Reload, "encryption-provider-config-automatic-reload", o.Reload, "follow the encryption configuration: a good new file takes effect, a bad one changes nothing")
}

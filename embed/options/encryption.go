// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Encryption says how objects are encrypted at rest.
type Encryption struct{}

func (o *Encryption) addFlags(*pflag.FlagSet) {}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Audit says what is written down of requests.
type Audit struct{}

func (o *Audit) addFlags(*pflag.FlagSet) {}

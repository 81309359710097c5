// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Authentication says who asks.
type Authentication struct{}

func (o *Authentication) addFlags(*pflag.FlagSet) {}

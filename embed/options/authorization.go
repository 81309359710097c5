// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Authorization says who may do what.
type Authorization struct{}

func (o *Authorization) addFlags(*pflag.FlagSet) {}

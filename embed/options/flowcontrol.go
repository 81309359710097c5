// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// FlowControl says how many requests are under way at once, and whose.
type FlowControl struct{}

func (o *FlowControl) addFlags(*pflag.FlagSet) {}

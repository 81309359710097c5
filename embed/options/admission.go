// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import "github.com/spf13/pflag"

// Admission says what changes and checks every write.
type Admission struct{}

func (o *Admission) addFlags(*pflag.FlagSet) {}

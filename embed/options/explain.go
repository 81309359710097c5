// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"cmp"
	"fmt"

	"github.com/spf13/pflag"
)

// Explain configures the traces of writes for `mortise explain`.
type Explain struct {
	// Enabled records traces. The zero value does not record; `mortise up` does by default.
	Enabled bool
	// Memory is the limit of the traces in mebibytes; 0: 16.
	Memory int
}

// The defaults of flags that are not set, and their maximums.
const (
	ExplainMemory    = 16
	maxExplainMemory = 16 << 10
)

func (o *Explain) addFlags(f *pflag.FlagSet) {
	f.BoolVar(&o.Enabled, "explain", o.Enabled, "Record traces of writes for \"mortise explain\".")
	f.IntVar(&o.Memory, "explain-memory", cmp.Or(o.Memory, ExplainMemory),
		"Maximum memory for traces of writes, in MiB. The oldest traces are dropped first.")
}

// Check refuses invalid settings.
func (o *Explain) Check() error {
	if o.Memory < 0 || o.Memory > maxExplainMemory {
		return fmt.Errorf("--explain-memory %d: want 1 to %d", o.Memory, maxExplainMemory)
	}
	return nil
}

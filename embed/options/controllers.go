// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"

	"github.com/spf13/pflag"
)

// Controllers are the settings of the control loops, under kube-controller-manager's flag names. What is nil or zero is as
// it has it without the flag.
type Controllers struct {
	// Settings are those that controllers declare beside themselves, by the names of their flags:
	// "node-monitor-grace-period": "20s". docs/configuration.md lists those of the built-in ones.
	Settings map[string]string
	Election Election
	Signing  Signing
}

// addFlags binds those that are no controller's own.
func (o *Controllers) addFlags(f *pflag.FlagSet) {
	o.Election.addFlags(f)
	o.Signing.addFlags(f)
}

// Check refuses what makes no sense. The settings of each controller are checked where the controllers are known.
func (o *Controllers) Check() error { return errors.Join(o.Election.check(), o.Signing.check()) }

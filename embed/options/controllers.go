// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"

	"github.com/spf13/pflag"
)

// Controllers are the settings of the controllers, under kube-controller-manager's flag names. Nil and zero fields have its defaults.
type Controllers struct {
	// Settings hold the values of the settings that controllers declare, by the names of their flags:
	// "node-monitor-grace-period": "20s". docs/configuration.md lists the settings of the built-in controllers.
	Settings map[string]string
	Election Election
	Signing  Signing
}

// addFlags binds the settings that do not belong to one controller.
func (o *Controllers) addFlags(f *pflag.FlagSet) {
	o.Election.addFlags(f)
	o.Signing.addFlags(f)
}

// Check refuses invalid settings. The settings of each controller are checked where the controllers are known.
func (o *Controllers) Check() error { return errors.Join(o.Election.check(), o.Signing.check()) }

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/internal/builtin"
	"github.com/mortise-dev/mortise/internal/config"
	"github.com/mortise-dev/mortise/internal/controllers"
)

// AddFlags binds the settings of an API server to flags, and those that controllers declare: the built-in ones, and more.
func AddFlags(f *pflag.FlagSet, o *options.APIServer, more []controllers.Controller) {
	o.AddFlags(f)
	for _, c := range append(builtin.Controllers(), more...) {
		for _, s := range c.AllSettings() {
			addFlag(f, s, keptValue{s.Value, s.Flag, &o.Controllers.Settings})
		}
	}
}

// addFlag binds a controller's setting to a flag that names the field of the configuration file.
func addFlag(f *pflag.FlagSet, s controllers.Setting, value pflag.Value) {
	f.Var(value, s.Flag, s.Usage)
	if s.Field != "" {
		config.Declare(f.Lookup(s.Flag), config.Setting{Flag: s.Flag, Field: s.Field, Optional: s.Optional})
	}
}

// keptValue is the value of a flag that is kept as text, too, once it is set: the controllers that it is for are made later.
type keptValue struct {
	pflag.Value
	flag string
	in   *map[string]string
}

// Set implements [pflag.Value].
func (v keptValue) Set(text string) error {
	if err := v.Value.Set(text); err != nil {
		return err
	}
	if *v.in == nil {
		*v.in = map[string]string{}
	}
	(*v.in)[v.flag] = v.Value.String()
	return nil
}

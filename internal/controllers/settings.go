// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllers

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/mortise-dev/mortise/extension/controller"
)

// Setting is one setting of a controller, declared beside it: a flag, and the equivalent field in ServerConfiguration.
type Setting = controller.Setting

// Value makes the value of a setting that is kept in a variable. The variable holds the default.
func Value[T bool | int | float32 | float64 | string | time.Duration](to *T) pflag.Value {
	return controller.Value(to)
}

// Syncs is the setting for the number of a controller's concurrent syncs. It is a [pflag.Value] itself.
type Syncs struct {
	Flag    string
	Default int
	Max     int // 0: no limit

	number *int // nil: the default
}

// Set implements [pflag.Value].
func (s *Syncs) Set(text string) error {
	n, err := strconv.ParseInt(text, 0, 32)
	if err == nil {
		s.number = new(int(n))
	}
	return err
}

// String implements [pflag.Value].
func (s *Syncs) String() string { return strconv.Itoa(s.effective()) }

// Type implements [pflag.Value].
func (s *Syncs) Type() string { return "int32" }

func (s *Syncs) effective() int {
	if s.number != nil {
		return *s.number
	}
	return s.Default
}

func (s *Syncs) check() error {
	switch n := s.effective(); {
	case n < 1:
		return fmt.Errorf("%s must not be less than %d, but got %d", s.Flag, 1, n) // upstream's words
	case s.Max > 0 && n > s.Max:
		return fmt.Errorf("%s must not be more than %d, but got %d", s.Flag, s.Max, n) // upstream's words
	}
	return nil
}

// AllSettings returns the settings of a controller, including the number of concurrent syncs.
func (c Controller) AllSettings() []Setting {
	all := slices.Clone(c.Settings)
	if c.Syncs != nil {
		all = append(all, Setting{
			Flag: c.Syncs.Flag, Field: "controllers.concurrentSyncs[" + c.Name + "]", Value: c.Syncs,
			Usage: "Number of objects that " + c.Name + " syncs concurrently.",
		})
	}
	return all
}

// Configure sets the settings of controllers, by flag name.
func Configure(all []Controller, settings map[string]string) error {
	values := map[string]pflag.Value{}
	for _, c := range all {
		for _, s := range c.AllSettings() {
			values[s.Flag] = s.Value
		}
	}
	for _, flag := range slices.Sorted(maps.Keys(settings)) {
		v := values[flag]
		if v == nil {
			return fmt.Errorf("--%s: no controller has this setting", flag)
		}
		if err := v.Set(settings[flag]); err != nil {
			return fmt.Errorf("--%s: %w", flag, err)
		}
	}
	return nil
}

// Check refuses settings of controllers that are invalid for the cluster's address ranges. It needs no other field of cluster.
func Check(all []Controller, cluster *Cluster) error {
	var errs []error
	for _, c := range all {
		if c.Syncs != nil {
			errs = append(errs, c.Syncs.check())
		}
		if c.Check != nil {
			errs = append(errs, c.Check(cluster))
		}
	}
	return errors.Join(errs...)
}

// AboveZero refuses durations that are not above 0. The keys are flag names.
func AboveZero(durations map[string]time.Duration) error {
	for _, flag := range slices.Sorted(maps.Keys(durations)) {
		if durations[flag] <= 0 {
			return fmt.Errorf("--%s must be above 0", flag)
		}
	}
	return nil
}

// Within refuses a number that is less than least or more than most.
func Within(flag string, n, least, most int) error {
	switch {
	case n < least:
		return fmt.Errorf("%s must not be less than %d, but got %d", flag, least, n) // upstream's words
	case n > most:
		return fmt.Errorf("%s must not be more than %d, but got %d", flag, most, n) // upstream's words
	}
	return nil
}

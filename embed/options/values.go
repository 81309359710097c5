// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// switched is a boolean flag; it is nil until it is set.
type switched struct {
	to      **bool
	without bool // the default
}

func (v *switched) Set(s string) error {
	b, err := strconv.ParseBool(s)
	if err != nil {
		return err
	}
	*v.to = &b
	return nil
}

func (v *switched) String() string {
	if v.to == nil || *v.to == nil {
		return strconv.FormatBool(v.without)
	}
	return strconv.FormatBool(**v.to)
}

func (v *switched) Type() string { return "bool" }

// Given reports whether the flag has a value.
func (v *switched) Given() bool { return v.to != nil && *v.to != nil }

func addSwitch(f *pflag.FlagSet, to **bool, name string, without bool, usage string) {
	f.Var(&switched{to, without}, name, usage)
	f.Lookup(name).NoOptDefVal = "true"
}

// span is a duration flag; it is nil until it is set.
type span struct {
	to      **time.Duration
	without time.Duration // the default
}

func (v *span) Set(s string) error {
	d, err := time.ParseDuration(s)
	if err != nil {
		return err
	}
	*v.to = &d
	return nil
}

func (v *span) String() string {
	if v.to == nil || *v.to == nil {
		return v.without.String()
	}
	return (**v.to).String()
}

func (v *span) Type() string { return "duration" }

// Given reports whether the flag has a value.
func (v *span) Given() bool { return v.to != nil && *v.to != nil }

// pairs is a flag KEY=VALUE that may be repeated; a value may hold commas.
type pairs struct{ to *map[string]string }

func (v *pairs) Set(s string) error {
	key, value, ok := strings.Cut(s, "=")
	if !ok {
		return fmt.Errorf("malformed pair, expect string=string") // upstream's words
	}
	if *v.to == nil {
		*v.to = map[string]string{}
	}
	(*v.to)[strings.TrimSpace(key)] = strings.TrimSpace(value)
	return nil
}

func (v *pairs) String() string {
	if v.to == nil {
		return ""
	}
	var out []string
	for key, value := range *v.to {
		out = append(out, key+"="+value)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

func (v *pairs) Type() string { return "mapStringString" }

// Append adds a pair, for [pflag.SliceValue].
func (v *pairs) Append(s string) error { return v.Set(s) }

// Replace sets the pairs of list and removes all others.
func (v *pairs) Replace(list []string) error {
	*v.to = nil
	for _, s := range list {
		if err := v.Set(s); err != nil {
			return err
		}
	}
	return nil
}

// GetSlice returns the pairs, sorted.
func (v *pairs) GetSlice() []string {
	out := make([]string, 0, len(*v.to))
	for key, value := range *v.to {
		out = append(out, key+"="+value)
	}
	slices.Sort(out)
	return out
}

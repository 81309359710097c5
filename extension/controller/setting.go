// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/pflag"
)

// Setting is one setting of a controller, declared beside it: a flag, and the equivalent field in ServerConfiguration.
type Setting struct {
	// Flag is the name of the flag: upstream's where upstream has it.
	Flag string
	// Field is the path of the field in ServerConfiguration, with the key of a map in brackets. Empty: only the flag sets it.
	Field string
	// Usage is the help text of the flag.
	Usage string
	// Value holds the default until it is set; [Value] makes one.
	Value pflag.Value
	// Optional: the default stands for no value, and a printed configuration leaves the field out.
	Optional bool
}

// Value makes the value of a setting that is kept in a variable. The variable holds the default.
func Value[T bool | int | float32 | float64 | string | time.Duration](to *T) pflag.Value {
	return &value[T]{to}
}

type value[T bool | int | float32 | float64 | string | time.Duration] struct{ to *T }

// Set implements [pflag.Value].
func (v *value[T]) Set(text string) (err error) {
	switch to := any(v.to).(type) {
	case *bool:
		var b bool
		if b, err = strconv.ParseBool(text); err == nil {
			*to = b
		}
	case *int:
		var n int64
		if n, err = strconv.ParseInt(text, 0, strconv.IntSize); err == nil {
			*to = int(n)
		}
	case *float32:
		var x float64
		if x, err = strconv.ParseFloat(text, 32); err == nil {
			*to = float32(x)
		}
	case *float64:
		var x float64
		if x, err = strconv.ParseFloat(text, 64); err == nil {
			*to = x
		}
	case *string:
		*to = text
	case *time.Duration:
		var d time.Duration
		if d, err = time.ParseDuration(text); err == nil {
			*to = d
		}
	}
	return err
}

// String implements [pflag.Value].
func (v *value[T]) String() string {
	if v.to == nil {
		return ""
	}
	return fmt.Sprint(*v.to)
}

// Type implements [pflag.Value].
func (v *value[T]) Type() string {
	if _, ok := any(v.to).(*time.Duration); ok {
		return "duration"
	}
	return fmt.Sprintf("%T", *v.to)
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package imagepolicy

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/mortise-dev/mortise/internal/apiserver/admit/settings"
)

func read(config io.Reader) (Configuration, error) {
	if config == nil {
		return Configuration{}, errors.New("no config specified") // upstream's words
	}
	var file struct {
		ImagePolicy Configuration `json:"imagePolicy"`
	}
	if err := settings.Plain(config, &file); err != nil {
		return Configuration{}, err
	}
	c := file.ImagePolicy
	for _, t := range []struct {
		name                 string
		said                 int64
		unit, least, usually time.Duration
		most                 time.Duration
		is                   *time.Duration
	}{
		{"retryBackoff", c.RetryBackoff, time.Millisecond, 1, 500 * time.Millisecond, 5 * time.Minute, &c.backoff},
		{"allowTTL", c.AllowTTL, time.Second, time.Second, 5 * time.Minute, 30 * time.Minute, &c.allowTTL},
		{"denyTTL", c.DenyTTL, time.Second, time.Second, 30 * time.Second, 30 * time.Minute, &c.denyTTL},
	} {
		switch {
		case t.said == -1:
			*t.is = 0
		case t.said == 0:
			*t.is = t.usually
		case t.said < int64(t.least/t.unit) || t.said > int64(t.most/t.unit):
			return Configuration{}, fmt.Errorf("%s: valid value is between %v and %v, got %d", t.name, t.least, t.most, t.said)
		default:
			*t.is = time.Duration(t.said) * t.unit
		}
	}
	return c, nil
}

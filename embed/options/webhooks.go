// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"time"

	"github.com/spf13/pflag"
)

// Webhooks says how admission webhooks are kept from hurting the rest of the cluster when they fail. None of it is
// kube-apiserver's; the zero value is as kube-apiserver has it.
type Webhooks struct {
	// Deadline bounds the time that all webhooks of one request take together; 0: no bound but each one's own.
	Deadline time.Duration
	// BreakerFailures is after how many failures in a row a webhook is not called for BreakerPause (0: 10 seconds), its failure policy deciding at
	// once; 0: only webhooks of configurations with the annotation extension.mortise.dev/breaker: "on", after 5.
	BreakerFailures int
	BreakerPause    time.Duration
	// LockoutGuard lets objects through that bring a webhook back which cannot be called.
	LockoutGuard bool
	// NameConfigurations has errors and warnings name the configuration of a webhook too.
	NameConfigurations bool
}

// Check refuses what means nothing.
func (o *Webhooks) Check() error {
	switch {
	case o.Deadline < 0:
		return errors.New("--admission-deadline is negative")
	case o.BreakerFailures < 0:
		return errors.New("--admission-breaker-failures is negative")
	case o.BreakerPause < 0:
		return errors.New("--admission-breaker-pause is negative")
	}
	return nil
}

func (o *Webhooks) addFlags(f *pflag.FlagSet) {
	f.DurationVar(&o.Deadline, "admission-deadline", o.Deadline, "the most time that all admission webhooks of one request take together; what is not asked by then counts as failed; 0: each has its own timeout alone")
	f.IntVar(&o.BreakerFailures, "admission-breaker-failures", o.BreakerFailures, "failures in a row after which an admission webhook is not called for a while; 0: only those annotated extension.mortise.dev/breaker: \"on\", after 5")
	f.DurationVar(&o.BreakerPause, "admission-breaker-pause", o.BreakerPause, "how long such a webhook is not called before one request tries it; 0: 10s")
	f.BoolVar(&o.LockoutGuard, "admission-lockout-guard", o.LockoutGuard, "let objects through that bring an admission webhook back which cannot be called: its service, that one's pods, what makes them and what they use")
	f.BoolVar(&o.NameConfigurations, "admission-name-configurations", o.NameConfigurations, "name the configuration of an admission webhook too in errors and warnings about it")
}

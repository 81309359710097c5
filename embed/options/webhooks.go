// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"time"

	"github.com/spf13/pflag"
)

// Webhooks configures protections against failing admission webhooks that kube-apiserver lacks; with the zero value, the server behaves as
// kube-apiserver.
type Webhooks struct {
	// Deadline limits the time that all webhooks of one request take together; 0: only each webhook's own timeout applies.
	Deadline time.Duration
	// BreakerFailures is the number of consecutive failures after which the server does not call a webhook for BreakerPause (0: 10
	// seconds), so that the webhook's failure policy decides at once; 0: only for webhooks of configurations with the annotation
	// extension.mortise.dev/breaker: "on", after 5.
	BreakerFailures int
	BreakerPause    time.Duration
	// LockoutGuard admits objects that restore an unreachable webhook.
	LockoutGuard bool
	// NameConfigurations adds the name of a webhook's configuration to errors and warnings.
	NameConfigurations bool
}

// Check refuses invalid settings.
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
	f.DurationVar(&o.Deadline, "admission-deadline", o.Deadline,
		"Maximum total time of all admission webhooks of a request. Webhooks not called by then count as failed. 0 means no maximum.")
	f.IntVar(&o.BreakerFailures, "admission-breaker-failures", o.BreakerFailures,
		"Number of consecutive failures after which a webhook is not called for a while. 0: only webhooks annotated extension.mortise.dev/breaker: \"on\", after 5.")
	f.DurationVar(&o.BreakerPause, "admission-breaker-pause", o.BreakerPause,
		"Time for which a failing admission webhook is not called before it is tried again. 0 means 10s.")
	f.BoolVar(&o.LockoutGuard, "admission-lockout-guard", o.LockoutGuard,
		"Exempt from a failing webhook the objects that can repair it: its Service, that Service's pods, and their owners and dependencies.")
	f.BoolVar(&o.NameConfigurations, "admission-name-configurations", o.NameConfigurations,
		"Name a webhook's configuration in errors and warnings about the webhook.")
}

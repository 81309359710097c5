// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"time"

	"github.com/spf13/pflag"
)

// Scheduler has the scheduler's settings. The zero value has kube-scheduler's defaults.
type Scheduler struct {
	// ConfigFile is a KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1, as for kube-scheduler's --config.
	ConfigFile string
	// ExtenderFailures is the number of consecutive failures after which the scheduler does not call an extender for ExtenderPause (0: 10
	// seconds), and counts it as failed; 0: it always calls the extender.
	ExtenderFailures int
	ExtenderPause    time.Duration
}

// Check refuses invalid settings.
func (o *Scheduler) Check() error {
	switch {
	case o.ExtenderFailures < 0:
		return errors.New("--scheduler-extender-breaker-failures is negative")
	case o.ExtenderPause < 0:
		return errors.New("--scheduler-extender-breaker-pause is negative")
	}
	return nil
}

func (o *Scheduler) addFlags(f *pflag.FlagSet) {
	f.StringVar(&o.ConfigFile, "scheduler-config", o.ConfigFile,
		"File of a KubeSchedulerConfiguration: profiles, plug-ins and their arguments, extenders.")
	f.IntVar(&o.ExtenderFailures, "scheduler-extender-breaker-failures", o.ExtenderFailures,
		"Number of consecutive failures after which a scheduler extender is not called for a while. 0 always calls it.")
	f.DurationVar(&o.ExtenderPause, "scheduler-extender-breaker-pause", o.ExtenderPause,
		"Time for which a failing scheduler extender is not called before it is tried again. 0 means 10s.")
}

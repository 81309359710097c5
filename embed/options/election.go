// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
)

// Election configures how several servers on one store elect the leader that runs the controllers, and the one that runs
// the scheduler. Nil and empty fields have the defaults of the flags.
type Election struct {
	// Elect enables the election; nil: enabled if other servers can share the store, as with the engine etcd.
	Elect *bool
	// LeaseDuration is how long candidates wait for a holder that does not renew, RenewDeadline how long a holder continues without a
	// renewal, RetryPeriod the interval of all attempts; nil: 15 s, 10 s, 2 s.
	LeaseDuration, RenewDeadline, RetryPeriod *time.Duration
	// Lock is the kind of the lock object; only "leases" is supported.
	Lock string
	// Namespace and Name are those of the Lease; empty: kube-system and kube-controller-manager. The scheduler's Lease is always named
	// kube-scheduler.
	Namespace, Name string
}

func (o *Election) addFlags(f *pflag.FlagSet) {
	addSwitch(f, &o.Elect, "leader-elect", false,
		"Hold a Lease while controllers and scheduler run, so that one of several servers on a store runs them.")
	f.Var(&span{&o.LeaseDuration, 15 * time.Second}, "leader-elect-lease-duration",
		"Time for which other servers wait for a silent leader before they try to acquire the Lease.")
	f.Var(&span{&o.RenewDeadline, 10 * time.Second}, "leader-elect-renew-deadline",
		"Time for which the leader tries to renew the Lease before it stops leading.")
	f.Var(&span{&o.RetryPeriod, 2 * time.Second}, "leader-elect-retry-period", "Time between attempts to acquire or renew the Lease.")
	f.StringVar(&o.Lock, "leader-elect-resource-lock", o.Lock, "Kind of object that is the lock. Allowed: leases. Default: leases.")
	f.StringVar(&o.Namespace, "leader-elect-resource-namespace", o.Namespace, "Namespace of the Leases. Default: kube-system.")
	f.StringVar(&o.Name, "leader-elect-resource-name", o.Name, "Name of the controllers' Lease. Default: kube-controller-manager.")
}

// Durations returns the three durations with defaults.
func (o *Election) Durations() (lease, deadline, retry time.Duration) {
	lease, deadline, retry = 15*time.Second, 10*time.Second, 2*time.Second
	for to, from := range map[*time.Duration]*time.Duration{&lease: o.LeaseDuration, &deadline: o.RenewDeadline, &retry: o.RetryPeriod} {
		if from != nil {
			*to = *from
		}
	}
	return lease, deadline, retry
}

func (o *Election) check() error {
	lease, deadline, retry := o.Durations()
	switch {
	case o.Lock != "" && o.Lock != "leases":
		return fmt.Errorf("--leader-elect-resource-lock %q: want leases", o.Lock)
	case retry <= 0:
		return errors.New("--leader-elect-retry-period must be above 0")
	case deadline <= retry*6/5:
		return errors.New("--leader-elect-renew-deadline must be above 1.2 times --leader-elect-retry-period")
	case lease <= deadline:
		return errors.New("--leader-elect-lease-duration must be above --leader-elect-renew-deadline")
	case lease < time.Second:
		return errors.New("--leader-elect-lease-duration must be a second at least")
	}
	return nil
}

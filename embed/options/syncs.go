// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package options

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/spf13/pflag"
)

// atOnce is the flag of one controller.
type atOnce struct {
	flag, controller string
	without          int // the default
	most             int // 0: any number
}

// concurrent are the flags of how many objects a controller syncs concurrently.
var concurrent = []atOnce{
	{"concurrent-cron-job-syncs", "cronjob-controller", 5, 0},
	{"concurrent-daemonset-syncs", "daemonset-controller", 2, 0},
	{"concurrent-deployment-syncs", "deployment-controller", 5, 0},
	{"concurrent-device-taint-eviction-syncs", "device-taint-eviction-controller", 8, 0},
	{"concurrent-disruption-syncs", "disruption-controller", 1, 0},
	{"concurrent-endpoint-syncs", "endpoints-controller", 5, 0},
	{"concurrent-ephemeralvolume-syncs", "ephemeral-volume-controller", 5, 0},
	{"concurrent-gc-syncs", "garbage-collector-controller", 20, 0},
	{"concurrent-job-syncs", "job-controller", 5, 0},
	{"concurrent-namespace-syncs", "namespace-controller", 10, 0},
	{"concurrent-rc-syncs", "replicationcontroller-controller", 5, 0},
	{"concurrent-replicaset-syncs", "replicaset-controller", 5, 0},
	{"concurrent-resource-quota-syncs", "resourcequota-controller", 5, 0},
	{"concurrent-resourceclaim-syncs", "resourceclaim-controller", 50, 0},
	{"concurrent-service-endpoint-syncs", "endpointslice-controller", 5, 50},
	{"concurrent-serviceaccount-token-syncs", "serviceaccount-token-controller", 5, 0},
	{"concurrent-statefulset-syncs", "statefulset-controller", 5, 0},
	{"concurrent-ttl-after-finished-syncs", "ttl-after-finished-controller", 5, 0},
	{"concurrent-validating-admission-policy-status-syncs", "validatingadmissionpolicy-status-controller", 5, 0},
	{"mirroring-concurrent-service-endpoint-syncs", "endpointslice-mirroring-controller", 5, 50},
}

func (o *Controllers) addSyncs(f *pflag.FlagSet) {
	for _, c := range concurrent {
		f.Var(&syncs{&o.Syncs, c.controller, c.without}, c.flag, "Number of objects that "+c.controller+" syncs concurrently.")
	}
}

func (o *Controllers) checkSyncs() error {
	for name := range o.Syncs {
		if !slices.ContainsFunc(concurrent, func(c atOnce) bool { return c.controller == name }) {
			return fmt.Errorf("controller %q has no setting for concurrent syncs", name)
		}
	}
	for _, c := range concurrent {
		n, ok := o.Syncs[c.controller]
		switch {
		case !ok:
		case n < 1:
			return fmt.Errorf("%s must not be less than %d, but got %d", c.flag, 1, n) // upstream's words
		case c.most > 0 && n > c.most:
			return fmt.Errorf("%s must not be more than %d, but got %d", c.flag, c.most, n) // upstream's words
		}
	}
	return nil
}

// syncs is the flag of one controller.
type syncs struct {
	to         *map[string]int
	controller string
	without    int
}

func (v *syncs) Set(s string) error {
	n, err := strconv.ParseInt(s, 0, 32)
	if err != nil {
		return err
	}
	if *v.to == nil {
		*v.to = map[string]int{}
	}
	(*v.to)[v.controller] = int(n)
	return nil
}

func (v *syncs) String() string {
	if v.to != nil {
		if n, ok := (*v.to)[v.controller]; ok {
			return strconv.Itoa(n)
		}
	}
	return strconv.Itoa(v.without)
}

func (v *syncs) Type() string { return "int32" }

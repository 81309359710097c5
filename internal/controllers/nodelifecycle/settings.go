// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodelifecycle

import (
	"errors"
	"fmt"
	"time"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// settings determine when a node counts as lost, and how fast its pods are then evicted.
type settings struct {
	grace, startupGrace time.Duration // how long a node may be silent; how long if it never reported
	period              time.Duration // how long to collect changes before judging zones
	rate, secondary     float32       // nodes per second and zone; the same for a zone that has mostly failed
	unhealthy           float32       // the fraction of failed nodes from which a zone has mostly failed
	large               int           // the number of nodes up to which secondary counts as 0
}

func defaults() *settings {
	return &settings{
		grace: 50 * time.Second, startupGrace: time.Minute, period: 5 * time.Second,
		rate: 0.1, secondary: 0.01, unhealthy: 0.55, large: 50,
	}
}

// Names of the flags, for checks.
const (
	graceFlag     = "node-monitor-grace-period"
	startupFlag   = "node-startup-grace-period"
	periodFlag    = "node-monitor-period"
	rateFlag      = "node-eviction-rate"
	secondaryFlag = "secondary-node-eviction-rate"
	unhealthyFlag = "unhealthy-zone-threshold"
)

func (s *settings) declare() []controllers.Setting {
	const fields = "controllers.nodeLifecycle."
	return []controllers.Setting{
		{
			Flag: graceFlag, Field: fields + "nodeMonitorGracePeriod", Value: controllers.Value(&s.grace),
			Usage: "Time for which a node may be silent before the controller marks it unhealthy.",
		},
		{
			Flag: startupFlag, Field: fields + "nodeStartupGracePeriod", Value: controllers.Value(&s.startupGrace),
			Usage: "Time for which a starting node may be silent before the controller marks it unhealthy.",
		},
		{
			Flag: periodFlag, Field: fields + "nodeMonitorPeriod", Value: controllers.Value(&s.period),
			Usage: "Time for which the node lifecycle controller collects changes of nodes before it evaluates zones.",
		},
		{
			Flag: rateFlag, Field: fields + "nodeEvictionRate", Value: controllers.Value(&s.rate),
			Usage: "Nodes per second and zone whose pods are deleted when nodes fail and the zone is healthy.",
		},
		{
			Flag: secondaryFlag, Field: fields + "secondaryNodeEvictionRate", Value: controllers.Value(&s.secondary),
			Usage: "Nodes per second and zone whose pods are deleted when nodes fail and the zone is unhealthy.",
		},
		{
			Flag: "large-cluster-size-threshold", Field: fields + "largeClusterSizeThreshold", Value: controllers.Value(&s.large),
			Usage: "Number of nodes of a zone up to which --secondary-node-eviction-rate is taken as 0.",
		},
		{
			Flag: unhealthyFlag, Field: fields + "unhealthyZoneThreshold", Value: controllers.Value(&s.unhealthy),
			Usage: "Fraction of a zone's nodes, at least three, that must be not ready for the zone to be unhealthy.",
		},
	}
}

func (s *settings) check() error {
	if err := controllers.AboveZero(map[string]time.Duration{graceFlag: s.grace, startupFlag: s.startupGrace,
		periodFlag: s.period}); err != nil {
		return err
	}
	for flag, rate := range map[string]float32{rateFlag: s.rate, secondaryFlag: s.secondary} {
		if !(rate >= 0 && rate <= 1e6) {
			return fmt.Errorf("--%s must be from 0 to a million", flag)
		}
	}
	if !(s.unhealthy >= 0 && s.unhealthy <= 1) {
		return errors.New("--" + unhealthyFlag + " must be from 0 to 1")
	}
	return nil
}

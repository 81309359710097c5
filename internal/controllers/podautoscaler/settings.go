// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package podautoscaler

import (
	"fmt"
	"time"

	"github.com/mortise-dev/mortise/internal/controllers"
	"github.com/mortise-dev/mortise/internal/controllers/podautoscaler/calculator"
)

// settings are how often autoscalers are evaluated, and how.
type settings struct {
	period time.Duration
	calculator.Settings
}

func defaults() *settings {
	return &settings{period: 15 * time.Second, Settings: calculator.Settings{
		Tolerance: 0.1, DownscaleStabilization: 5 * time.Minute, CPUInitializationPeriod: 5 * time.Minute,
		InitialReadinessDelay: 30 * time.Second,
	}}
}

// The flags that check names.
const (
	periodFlag    = "horizontal-pod-autoscaler-sync-period"
	toleranceFlag = "horizontal-pod-autoscaler-tolerance"
)

func (s *settings) declare() []controllers.Setting {
	const fields = "controllers.horizontalPodAutoscaler."
	return []controllers.Setting{
		{
			Flag: periodFlag, Field: fields + "syncPeriod", Value: controllers.Value(&s.period),
			Usage: "Time between two evaluations of a HorizontalPodAutoscaler.",
		},
		{
			Flag: "horizontal-pod-autoscaler-downscale-stabilization", Field: fields + "downscaleStabilizationWindow",
			Value: controllers.Value(&s.DownscaleStabilization),
			Usage: "Time for which the greatest recommendation holds before a HorizontalPodAutoscaler scales down.",
		},
		{
			Flag: toleranceFlag, Field: fields + "tolerance", Value: controllers.Value(&s.Tolerance),
			Usage: "How far the ratio of usage to target may be from 1 without a change of the replicas.",
		},
		{
			Flag: "horizontal-pod-autoscaler-cpu-initialization-period", Field: fields + "cpuInitializationPeriod",
			Value: controllers.Value(&s.CPUInitializationPeriod), Usage: "Time after a pod's start in which its CPU samples may be skipped.",
		},
		{
			Flag: "horizontal-pod-autoscaler-initial-readiness-delay", Field: fields + "initialReadinessDelay",
			Value: controllers.Value(&s.InitialReadinessDelay),
			Usage: "Time after a pod's start in which a change of its readiness counts as the first.",
		},
	}
}

func (s *settings) check() error {
	if err := controllers.AboveZero(map[string]time.Duration{periodFlag: s.period}); err != nil {
		return err
	}
	if !(s.Tolerance >= 0 && s.Tolerance <= 1e6) {
		return fmt.Errorf("--%s must be from 0 to a million", toleranceFlag)
	}
	return nil
}

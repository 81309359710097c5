// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package controllertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/internal/controllers"
)

// Meters returns metrics for the options of [Run], and the gatherer that [Counted] reads.
func Meters(t *testing.T) (*controllers.Metrics, prometheus.Gatherer) {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	m, err := controllers.NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	return m, registry
}

// Counted returns the metrics whose names begin with prefix, as "name{label=value} number", in order. A histogram shows its number of
// observations.
func Counted(t *testing.T, from prometheus.Gatherer, prefix string) []string {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for _, f := range families {
		name, ok := strings.CutPrefix(f.GetName(), prefix)
		if !ok {
			continue
		}
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName()+"="+l.GetValue())
			}
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			lines = append(lines, fmt.Sprintf("%s{%s} %v", name, strings.Join(labels, ","), value))
		}
	}
	slices.Sort(lines)
	return lines
}

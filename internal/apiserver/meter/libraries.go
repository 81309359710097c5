// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// withLibraries adds the metrics of Kubernetes' libraries, which they count in a registry of their own: token caches,
// issuers, envelope encryption, expressions. If both have a metric, the meter's is used. The libraries have one
// registry per process: two servers in it report the same values.
type withLibraries struct {
	own, libraries prometheus.Gatherer
}

// Gather implements [prometheus.Gatherer].
func (g withLibraries) Gather() ([]*dto.MetricFamily, error) {
	own, err := g.own.Gather()
	if err != nil || g.libraries == nil {
		return own, err
	}
	theirs, err := g.libraries.Gather()
	has := make(map[string]bool, len(own))
	for _, f := range own {
		has[f.GetName()] = true
	}
	for _, f := range theirs {
		if name := f.GetName(); !has[name] && !strings.HasPrefix(name, "go_") && !strings.HasPrefix(name, "process_") {
			own = append(own, f)
		}
	}
	slices.SortFunc(own, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return own, err
}

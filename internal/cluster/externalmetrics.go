// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"

	"github.com/mortise-dev/mortise/internal/apiserver/externalmetrics"
	"github.com/mortise-dev/mortise/resource"
)

// externalMetricsKinds returns the kind of routes to external-metrics servers; none if these are disabled.
func externalMetricsKinds(c *settings) ([]*resource.Descriptor, error) {
	if !c.APIServer.Aggregation.ExternalMetricsRoutes {
		return nil, nil
	}
	kind, err := externalmetrics.Kind()
	if err != nil {
		return nil, fmt.Errorf("make external-metrics routes: %w", err)
	}
	return []*resource.Descriptor{kind}, nil
}

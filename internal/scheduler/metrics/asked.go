// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metrics

import "github.com/prometheus/client_golang/prometheus"

// Asked counts the calls of a plug-in at an extension point. The zero value counts nothing.
type Asked struct{ counter prometheus.Counter }

// Asked returns the counter of a plug-in at a point.
func (p *Profile) Asked(plugin string, at Point) Asked {
	if p == nil {
		return Asked{}
	}
	return Asked{p.all.asked.WithLabelValues(plugin, pointNames[at], p.name)}
}

// Add counts n calls.
func (a Asked) Add(n int) {
	if a.counter != nil && n > 0 {
		a.counter.Add(float64(n))
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package nodestatus

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Only the first attempt, registration and readiness count, and only of a Node that is new.
func TestStartupMetrics(t *testing.T) {
	at := func(seconds int64) time.Time { return time.Unix(seconds, 0) }
	m := NewMetrics(at(100), at(110))
	value := func(of prometheus.Collector) float64 {
		var d dto.Metric
		if err := of.(prometheus.Metric).Write(&d); err != nil {
			t.Fatal(err)
		}
		return d.GetGauge().GetValue()
	}
	m.ready(at(111)) // the Node was there before
	if got := value(m.total); got != 0 {
		t.Errorf("an old node took %v s", got)
	}
	m.asks(at(112))
	m.asks(at(113))
	m.made(at(115))
	m.made(at(116))
	m.ready(at(120))
	m.ready(at(130))
	for i, want := range []float64{10, 2, 3, 5, 20} {
		if got := value(m.Collectors()[i]); got != want {
			t.Errorf("metric %d is %v s, want %v", i, got, want)
		}
	}
}

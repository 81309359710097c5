// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package metricsapi

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/mortise-dev/mortise/resource"
)

// most is the maximum size of a node's answer.
const most = 64 << 20

// remote reads what a node of another process says of itself, as the API server's client of kubelets.
func remote(ctx context.Context, b resource.Backend, name string) (*Sample, error) {
	at, transport, err := b.Node(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("find node %s: %w", name, err)
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.JoinPath("metrics", "resource").String(), nil)
	if err != nil {
		return nil, fmt.Errorf("ask node %s: %w", name, err)
	}
	r.Header.Set("Accept", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	resp, err := (&http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse // a node must not direct the server's certificate elsewhere
	}}).Do(r)
	if err != nil {
		return nil, fmt.Errorf("ask node %s: %w", name, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("ask node %s: /metrics/resource: %s", name, resp.Status)
	}
	s, err := parse(io.LimitReader(resp.Body, most), time.Now())
	if err != nil {
		return nil, fmt.Errorf("read the answer of node %s: %w", name, err)
	}
	return s, nil
}

// parse reads metrics in Prometheus' text format. Values without a time are of now.
func parse(text io.Reader, now time.Time) (*Sample, error) {
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(text)
	if err != nil {
		return nil, fmt.Errorf("parse metrics: %w", err)
	}
	out := &Sample{}
	at := map[[3]string]int{}
	each := func(name string, bound float64, set func(*Point, float64, time.Time)) error {
		for _, m := range families[name].GetMetric() {
			v, t := value(m), now
			if m.TimestampMs != nil {
				t = time.UnixMilli(m.GetTimestampMs())
			}
			if !(v >= 0 && v < bound) { // also NaN
				return fmt.Errorf("%s: %v", name, v)
			}
			if name == nodeCPU || name == nodeMemory {
				set(&out.Node, v, t)
				continue
			}
			var key [3]string
			for _, l := range m.GetLabel() {
				switch l.GetName() {
				case "namespace":
					key[0] = l.GetValue()
				case "pod":
					key[1] = l.GetValue()
				case "container":
					key[2] = l.GetValue()
				}
			}
			i, ok := at[key]
			if !ok {
				i = len(out.Containers)
				at[key] = i
				out.Containers = append(out.Containers, Container{Namespace: key[0], Pod: key[1], Name: key[2]})
			}
			set(&out.Containers[i].Point, v, t)
		}
		return nil
	}
	cpu := func(p *Point, v float64, t time.Time) { p.CPU, p.Time = uint64(v*1e9), t }
	memory := func(p *Point, v float64, _ time.Time) { p.Memory = uint64(v) }
	const bytes, seconds = 1 << 62, (1 << 62) / 1e9
	for _, f := range []struct {
		name  string
		bound float64
		set   func(*Point, float64, time.Time)
	}{
		{nodeCPU, seconds, cpu},
		{nodeMemory, bytes, memory},
		{"container_cpu_usage_seconds_total", seconds, cpu},
		{"container_memory_working_set_bytes", bytes, memory},
		{"container_start_time_seconds", seconds, func(p *Point, v float64, _ time.Time) { p.Started = time.Unix(0, int64(v*1e9)) }},
	} {
		if err := each(f.name, f.bound, f.set); err != nil {
			return nil, err
		}
	}
	return out, nil
}

const (
	nodeCPU    = "node_cpu_usage_seconds_total"
	nodeMemory = "node_memory_working_set_bytes"
)

// value returns the value of a metric of any simple type.
func value(m *dto.Metric) float64 {
	switch {
	case m.Counter != nil:
		return m.GetCounter().GetValue()
	case m.Gauge != nil:
		return m.GetGauge().GetValue()
	case m.Untyped != nil:
		return m.GetUntyped().GetValue()
	}
	return math.NaN()
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package meter

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
	"github.com/mortise-dev/mortise/resource"
)

var admissionBuckets = []float64{0.005, 0.025, 0.1, 0.5, 1.0, 2.5}

// The values of the label type.
const (
	admitting = iota
	validating
)

var admissionTypes = [2]string{"admit", "validate"}

// Admission returns a chain with a single plug-in, which runs the plug-ins of c in order and measures their durations,
// separately and in total.
func (m *Meter) Admission(c admit.Chain) admit.Chain {
	if len(c) == 0 {
		return nil
	}
	t := &timed{meter: m, steps: newSteps(func(labels ...string) prometheus.Observer { return m.step.WithLabelValues(labels...) })}
	validators := 0
	for _, p := range c {
		one := plugin{steps: newSteps(func(labels ...string) prometheus.Observer {
			return m.controller.WithLabelValues(append([]string{p.Name()}, labels...)...)
		})}
		one.name = p.Name()
		one.filter, _ = p.(admit.Filter)
		one.mutator, _ = p.(admit.Mutator)
		if one.validator, _ = p.(admit.Validator); one.validator != nil {
			one.place, validators = validators, validators+1
		}
		t.plugins = append(t.plugins, one)
	}
	t.validators = validators
	return admit.Chain{t}
}

type plugin struct {
	name      string
	place     int          // index among the validators
	filter    admit.Filter // nil: it handles all requests
	mutator   admit.Mutator
	validator admit.Validator
	steps     *steps
}

// handles reports whether the plug-in has something to say on a request.
func (p *plugin) handles(a *admit.Attributes) bool { return p.filter == nil || p.filter.Handles(a) }

// timed is a chain that acts as one plug-in.
type timed struct {
	meter      *Meter
	plugins    []plugin
	validators int // among them
	steps      *steps
}

// Name is never reported: the plug-ins inside reject requests under their own names.
func (t *timed) Name() string { return "chain" }

// Mutate calls every mutator that handles the request in order, and all of them again if one requests it. It stops at the first error.
func (t *timed) Mutate(ctx context.Context, b resource.Backend, a *admit.Attributes) (err error) {
	tr := explain.From(ctx)
	tr.Enter(explain.Mutate)
	tr.Given(a.Descriptor, a.Subresource, a.Object)
	start := time.Now()
	last := start
	for again := true; again; again = err == nil && a.Again() {
		for i := range t.plugins {
			p := &t.plugins[i]
			if p.mutator == nil || !p.handles(a) {
				continue
			}
			err = p.mutator.Mutate(ctx, b, a)
			now := time.Now()
			p.steps.observe(t.meter, admitting, a.Operation, err != nil, now.Sub(last))
			tr.Mutated(p.name, now.Sub(last), a.Object, err)
			if last = now; err != nil {
				break
			}
		}
	}
	t.steps.observe(t.meter, admitting, a.Operation, err != nil, last.Sub(start))
	if err == nil {
		tr.Enter(explain.Prepare)
	}
	return err
}

// Validate calls every validator that handles the request in order. It stops at the first error.
func (t *timed) Validate(ctx context.Context, b resource.Backend, a *admit.Attributes) (err error) {
	tr := explain.From(ctx)
	tr.Enter(explain.Validate)
	start := time.Now()
	last := start
	for i := range t.plugins {
		p := &t.plugins[i]
		if p.validator == nil || !p.handles(a) {
			continue
		}
		err = p.validator.Validate(ctx, b, a)
		now := time.Now()
		p.steps.observe(t.meter, validating, a.Operation, err != nil, now.Sub(last))
		tr.Validated(p.place, p.name, now.Sub(last), err)
		if last = now; err != nil {
			break
		}
	}
	if err == nil {
		// A validator that does not handle the request counts as one that allowed it.
		tr.Validated(t.validators-1, "", 0, nil)
	}
	t.steps.observe(t.meter, validating, a.Operation, err != nil, last.Sub(start))
	return err
}

// steps caches the histograms of one plug-in or of the chain, by type, operation, and whether it rejected the request.
type steps struct {
	lookup func(labels ...string) prometheus.Observer
	known  [2][4][2]atomic.Pointer[step]
}

// step is valid until the metrics are reset.
type step struct {
	prometheus.Observer
	resets int64
}

func newSteps(lookup func(labels ...string) prometheus.Observer) *steps {
	return &steps{lookup: lookup}
}

func (s *steps) observe(m *Meter, kind int, op admit.Operation, rejected bool, took time.Duration) {
	i := 0
	switch op {
	case admit.Update:
		i = 1
	case admit.Delete:
		i = 2
	case admit.Connect:
		i = 3
	}
	j := 0
	if rejected {
		j = 1
	}
	at := &s.known[kind][i][j]
	o, resets := at.Load(), m.resets.Load()
	if o == nil || o.resets != resets {
		o = &step{s.lookup(admissionTypes[kind], string(op), strconv.FormatBool(rejected)), resets}
		at.Store(o)
	}
	o.Observe(took.Seconds())
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"encoding/json"
	"slices"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
)

// explainMutation records in the request's trace how a policy changed the object.
func explainMutation(ctx context.Context, c *call, begun time.Time, before, after runtime.Object) {
	t := explain.From(ctx)
	if !t.Keeps() {
		return
	}
	s := explain.Step{Phase: trace.Mutate, Kind: trace.Policy, Configuration: c.binding.name, Name: c.policy.name, Result: trace.Allowed,
		Took: time.Since(begun)}
	if !apiequality.Semantic.DeepEqual(before, after) {
		s.Result = trace.Changed
		var err error
		if s.Before, err = json.Marshal(before); err == nil {
			s.After, err = json.Marshal(after)
		}
		if err != nil { // the trace then says only that there was a change
			s.Before, s.After = nil, nil
		}
	}
	t.Step(s)
}

// explainRefusal records that a policy cannot be applied, and whether the request continues in spite of that.
func explainRefusal[E any](t *explain.Trace, phase string, p *policy[E], b *binding, err error) {
	if !t.Keeps() {
		return
	}
	s := explain.Step{Phase: phase, Kind: trace.Policy, Name: p.name, Result: trace.Failed, Reason: err.Error()}
	if b != nil {
		s.Configuration = b.name
	}
	if p.ignores() {
		s.Result = trace.Ignored
	}
	t.Step(s)
}

// explainVerdict records the violations of a policy through a binding: a denial if the binding denies, otherwise
// violations in spite of which the request continues.
func explainVerdict(t *explain.Trace, p *policy[validating.Validator], b *binding, begun time.Time, r *validating.ValidateResult) {
	if !t.Keeps() {
		return
	}
	s := explain.Step{Phase: trace.Validate, Kind: trace.Policy, Configuration: b.name, Name: p.name, Result: trace.Allowed,
		Took: time.Since(begun)}
	for _, d := range r.Decisions {
		if d.Action != validating.ActionDeny {
			continue
		}
		s.Reason = d.Message
		if s.Result = trace.Ignored; slices.Contains(b.actions, admissionregistrationv1.Deny) {
			s.Result = trace.Denied
		}
		break
	}
	t.Step(s)
}

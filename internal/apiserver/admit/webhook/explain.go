// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/explain"
)

// explained applies the failure policy to the result of a call, and records in the request's trace what the webhook responded and whether
// the request goes on.
func explained(ctx context.Context, phase string, h *hook, begun time.Time, changed bool, err error, settle func(error) error) error {
	took := time.Since(begun)
	if spent, ok := request.LatencyTrackersFrom(ctx); ok { // for the audit log
		to := spent.MutatingWebhookTracker
		if phase == trace.Validate {
			to = spent.ValidatingWebhookTracker
		}
		to.TrackDuration(took)
	}
	t := explain.From(ctx)
	if !t.Keeps() {
		if err == nil {
			return nil
		}
		return settle(err)
	}
	s := explain.Step{Phase: phase, Kind: trace.Webhook, Configuration: h.configuration, Name: h.name, Result: trace.Allowed, Took: took}
	if err == nil {
		if changed {
			s.Result = trace.Changed
		}
		t.Step(s)
		return nil
	}
	settled := settle(err)
	s.Reason = err.Error()
	switch {
	case settled == nil:
		s.Result = trace.Ignored
	case errors.As(err, new(rejected)):
		s.Result = trace.Denied
	default:
		s.Result = trace.Failed
	}
	t.Step(s)
	return settled
}

// patchedTo records in the request's trace the object after a webhook's patch, and the defaults that were filled in then.
func patchedTo(ctx context.Context, before, patched []byte, filled runtime.Object, changed bool) {
	if t := explain.From(ctx); changed && t.Keeps() {
		b, err := json.Marshal(filled)
		if err != nil {
			b = patched // already encoded
		}
		t.Patched(before, patched, b)
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apiserver/pkg/warning"

	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
)

// call calls a webhook, and passes on its warnings and audit annotations. The error is a *failed, a rejected, or the server's own.
func (p *generic) call(ctx context.Context, h *hook, q *matching.Request, r *reviews, v *matching.Versioned, mutating bool) (*answer,
	error) {
	if q.DryRun {
		if h.sideEffects == nil {
			return nil, &failed{h.title, errors.New("Webhook SideEffects is nil"), http.StatusBadRequest} //nolint:staticcheck // upstream's words
		}
		if s := *h.sideEffects; s != admissionregistrationv1.SideEffectClassNone && s != admissionregistrationv1.SideEffectClassNoneOnDryRun {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("admission webhook %s does not support dry run", h.title)) // upstream's words
		}
	}
	uid, version, body, err := r.of(h, v)
	if err != nil {
		return nil, &failed{h.title, fmt.Errorf("could not create admission objects: %w", err), http.StatusBadRequest} // upstream's words
	}
	client, err := h.client()
	if err != nil {
		return nil, &failed{h.title, fmt.Errorf("could not get REST client: %w", err), http.StatusInternalServerError} // upstream's words
	}
	said := emptyAnswer(version)
	var a *answer
	var wrong error
	err = p.post(ctx, h, client, body, said, func() error {
		if a, wrong = check(uid, mutating, said); wrong != nil {
			return wrong
		}
		return a.readPatch()
	})
	switch {
	case wrong != nil:
		// upstream's words
		return nil, &failed{h.title, fmt.Errorf("received invalid webhook response: %w", wrong), http.StatusServiceUnavailable}
	case a == nil && err != nil: // no response; an invalid patch is reported after the rest of the response
		code := int32(http.StatusServiceUnavailable)
		if errors.Is(err, errSpent) {
			code = http.StatusGatewayTimeout
		}
		if st := (*apierrors.StatusError)(nil); errors.As(err, &st) {
			code = st.ErrStatus.Code
		}
		return nil, &failed{h.title, fmt.Errorf("failed to call webhook: %w", err), code} // upstream's words
	}
	for key, value := range a.annotations {
		p.annotate(q, h.name+"/"+key, value)
	}
	for _, w := range a.warnings {
		if p.protection.Configurations && w != "" {
			w = "webhook " + h.title + ": " + w
		}
		warning.AddWarning(ctx, "", w)
	}
	if !a.allowed {
		return nil, rejected{refusal(h.title, a.result)}
	}
	return a, nil
}

// annotate adds an audit annotation whose key is partly the webhook's.
func (p *generic) annotate(q *matching.Request, key, value string) {
	if strings.Count(key, "/") != 1 || len(validation.IsQualifiedName(key)) > 0 {
		p.host.Log.Warn("Dropped an audit annotation of a webhook with an invalid key", "key", key)
		return
	}
	q.Annotate(key, value)
}

// observe records a call in the metrics.
func (p *generic) observe(h *hook, q *matching.Request, took time.Duration, err error) {
	op := string(q.Operation)
	var f *failed
	var no rejected
	switch {
	case err == nil:
		p.meter.call(h.name, p.step, op, took, false, http.StatusOK)
	case errors.As(err, &f):
		if !h.ignore && !errors.Is(err, context.Canceled) {
			p.meter.reject(h.name, p.step, op, "calling_webhook_error", int(f.code))
		}
		p.meter.call(h.name, p.step, op, took, !h.ignore, int(f.code))
	case errors.As(err, &no):
		p.meter.reject(h.name, p.step, op, "no_error", int(no.ErrStatus.Code))
		p.meter.call(h.name, p.step, op, took, true, int(no.ErrStatus.Code))
	default:
		p.meter.reject(h.name, p.step, op, "apiserver_internal_error", 0)
		p.meter.call(h.name, p.step, op, took, true, 0)
	}
}

// late returns the error of a request whose deadline has expired.
func late() error {
	return apierrors.NewTimeoutError("request did not complete within requested timeout", 0)
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/trace"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
	"github.com/mortise-dev/mortise/internal/apiserver/admit/matching"
	"github.com/mortise-dev/mortise/resource"
)

// Validating is the plug-in ValidatingAdmissionWebhook.
type Validating struct{ generic }

var (
	_ admit.Validator = (*Validating)(nil)
	_ admit.Hosted    = (*Validating)(nil)
	_ admit.Follower  = (*Validating)(nil)
)

// NewValidating returns the plug-in.
func NewValidating(o Options) *Validating {
	return &Validating{generic{name: "ValidatingAdmissionWebhook", kind: "ValidatingWebhookConfiguration", step: "validating",
		point: extension.ValidatingWebhook, options: o,
		resource: schema.GroupResource{Group: group, Resource: "validatingwebhookconfigurations"}}}
}

// asked is one webhook that matches the request.
type asked struct {
	*hook
	in *matching.Versioned
}

// Validate calls the matching webhooks concurrently. The first error rejects the request.
func (p *Validating) Validate(ctx context.Context, b resource.Backend, a *admit.Attributes) error {
	if err := p.Refuse(a); err != nil {
		return err
	}
	hooks := p.relevant(a)
	if len(hooks) == 0 {
		return nil
	}
	q := matching.NewRequest(p.host, b, a)
	var all []asked
	for _, h := range hooks {
		form, err := p.matches(ctx, h, q)
		if err != nil {
			return err
		}
		if form == nil {
			continue
		}
		v, err := q.In(ctx, form)
		if err != nil {
			return apierrors.NewInternalError(err)
		}
		all = append(all, asked{h, v})
	}
	if len(all) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return late()
	}
	r := &reviews{q: q}
	if len(all) == 1 {
		return p.ask(ctx, &all[0], q, r, 0)
	}
	errs := make(chan error, len(all))
	var g sync.WaitGroup
	for i := range all {
		g.Go(func() {
			if err := p.ask(ctx, &all[i], q, r, i); err != nil {
				errs <- err
			}
		})
	}
	g.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

func (p *Validating) ask(ctx context.Context, h *asked, q *matching.Request, r *reviews, i int) (err error) {
	defer func() {
		x := recover()
		if x == nil {
			return
		}
		p.host.Log.ErrorContext(ctx, "Panic while calling a webhook", "webhook", h.name, "panic", x, "stack", string(debug.Stack()))
		if h.ignore {
			p.passedOver(h.hook, q, i)
			err = nil
			return
		}
		err = apierrors.NewInternalError(fmt.Errorf("ValidatingAdmissionWebhook/%v has panicked: %v", h.name, x)) // upstream's words
	}()
	begun := time.Now()
	_, err = p.call(ctx, h.hook, q, r, h.in, false)
	p.observe(h.hook, q, time.Since(begun), err)
	return explained(ctx, trace.Validate, h.hook, begun, false, err, func(err error) error { return p.settle(ctx, h.hook, q, i, err) })
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package webhook

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/mortise-dev/mortise/extension/webhook"
	"github.com/mortise-dev/mortise/internal/apiserver/admit"
)

// Protection limits the effects of a failing webhook. The zero value has no limits, as in kube-apiserver.
type Protection struct {
	// Deadline is the maximum total time of the webhooks of one request; 0: only each one's timeout. A webhook that was
	// not called by then counts as failed.
	Deadline time.Duration
	// Failures is the number of consecutive failures after which a webhook is not called for Pause (0: [DefaultPause]);
	// its failure policy then decides without a call. 0: only for configurations with [BreakerAnnotation], after
	// [DefaultFailures].
	Failures int
	Pause    time.Duration
	// Guard admits objects that a failing webhook needs to recover.
	Guard bool
	// Configurations adds the webhook's configuration to errors and warnings; kube-apiserver names only the webhook.
	Configurations bool
}

// Defaults of breakers.
const (
	DefaultFailures = 5
	DefaultPause    = 10 * time.Second
)

// BreakerAnnotation on a configuration turns the breakers of its webhooks "on" or "off".
const BreakerAnnotation = "extension.mortise.dev/breaker"

// Protect sets the protection of the plug-in's webhooks. It must be called before Join.
func (p *generic) Protect(protection Protection) { p.protection = protection }

// Protected is implemented by both plug-ins.
type Protected interface{ Protect(protection Protection) }

var endpointSlices = schema.GroupResource{Group: discoveryv1.GroupName, Resource: "endpointslices"}

// titleOf returns how errors name a webhook: by its name, as in kube-apiserver, and by its configuration if that is configured.
func (p *generic) titleOf(h *hook) string {
	if p.protection.Configurations {
		return fmt.Sprintf("%q of %s %q", h.name, p.kind, h.configuration)
	}
	return fmt.Sprintf("%q", h.name)
}

// serviceOf returns the service of a target, also if a URL names it.
func serviceOf(t *webhook.Target) types.NamespacedName {
	if t.Service != nil {
		return types.NamespacedName{Namespace: t.Service.Namespace, Name: t.Service.Name}
	}
	u, err := url.Parse(t.URL)
	if err != nil {
		return types.NamespacedName{}
	}
	labels := strings.SplitN(u.Hostname(), ".", 4)
	if len(labels) < 3 || labels[2] != "svc" {
		return types.NamespacedName{}
	}
	return types.NamespacedName{Namespace: labels[1], Name: labels[0]}
}

// breaker sets a webhook's breaker.
func (p *generic) breaker(h *hook, said string) {
	if said == "off" || said != "on" && p.protection.Failures == 0 {
		return
	}
	h.policy.Failures, h.policy.Pause = cmp.Or(p.protection.Failures, DefaultFailures), cmp.Or(p.protection.Pause, DefaultPause)
	h.policy.Turned = func(open bool) {
		if open {
			p.host.Log.Warn("Webhook keeps failing, pausing calls to it", "configuration", h.configuration, "webhook", h.name,
				"pause", h.policy.Pause)
		} else {
			p.host.Log.Info("Calling a webhook again", "configuration", h.configuration, "webhook", h.name)
		}
	}
}

// forgive closes the breakers of webhooks whose target has changed, so that a repaired configuration takes effect at once.
func (p *generic) forgive(before, now []*hook) {
	old := make(map[string][sha256.Size]byte, len(before))
	for _, h := range before {
		old[h.uid] = h.target
	}
	for _, h := range now {
		if target, ok := old[h.uid]; ok && target != h.target {
			p.host.Ledger.Forgive(h.ref)
		}
	}
}

// moved closes the breakers of the webhooks of a service whose endpoints have changed.
func (p *generic) moved(namespace, service string) {
	all := p.hooks.Load()
	if all == nil {
		return
	}
	for _, h := range *all {
		if h.policy.Failures > 0 && h.service.Namespace == namespace && h.service.Name == service {
			p.host.Ledger.Forgive(h.ref)
		}
	}
}

// errSpent means that a request has no time left for webhooks.
var errSpent = errors.New("the deadline of admission is used up")

// post calls a webhook in the time that the request has left for it. A response for which check returns an error counts
// as a failure.
func (p *generic) post(ctx context.Context, h *hook, c *webhook.Client, body []byte, into runtime.Object, check func() error) error {
	policy := h.policy
	if p.protection.Deadline == 0 {
		if policy.Failures > 0 {
			policy.Excused = func(error) bool { return errors.Is(ctx.Err(), context.Canceled) }
		}
		return c.Post(ctx, h.ref, policy, body, into, check)
	}
	s, begun := admit.SpendingOf(ctx), time.Now()
	left := p.protection.Deadline - s.Begin(begun)
	if left <= 0 {
		s.End(h.ref.Name, begun, begun)
		return p.spent(s)
	}
	within, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	if policy.Failures > 0 { // a webhook that had too little time left is not to blame, unless it took the most
		policy.Excused = func(error) bool {
			return errors.Is(ctx.Err(), context.Canceled) || within.Err() != nil && time.Since(begun) < p.protection.Deadline/2
		}
	}
	err := c.Post(within, h.ref, policy, body, into, check)
	s.End(h.ref.Name, begun, time.Now())
	if err != nil && within.Err() != nil && ctx.Err() == nil {
		return p.spent(s)
	}
	return err
}

// spent returns the error of a request that is out of time: each webhook with the time that it took, the slowest first.
func (p *generic) spent(s *admit.Spending) error {
	took := s.Took()
	parts := make([]string, len(took))
	most := 0
	for i, t := range took {
		parts[i] = fmt.Sprintf("%s took %s", t.Name, t.Took.Round(time.Millisecond))
		if t.Took > took[most].Took {
			most = i
		}
	}
	return fmt.Errorf("%w (%s), most of it by %s: %s", errSpent, p.protection.Deadline, took[most].Name, strings.Join(parts, ", "))
}

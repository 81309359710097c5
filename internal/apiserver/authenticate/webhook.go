// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"fmt"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
	"k8s.io/client-go/rest"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
)

// WebhookSettings configure the webhook that authenticates tokens.
type WebhookSettings struct {
	Config  *rest.Config
	File    string        // the file of the configuration
	Version string        // of TokenReview: v1 or v1beta1
	TTL     time.Duration // how long results are cached; 0: not at all
	// Retry configures the retries of a failed call; zero: upstream's.
	Retry wait.Backoff
}

// LoadWebhook reads a kubeconfig: its cluster is the webhook, its user is this server.
func LoadWebhook(file, version string, ttl time.Duration) (*WebhookSettings, error) {
	switch version {
	case "v1", "v1beta1":
	default:
		// upstream's words
		return nil, fmt.Errorf("unsupported authentication webhook version %q, supported versions are %q, %q", version, "v1", "v1beta1")
	}
	c, err := webhookutil.LoadKubeconfig(file, nil)
	if err != nil {
		return nil, fmt.Errorf("read token webhook's kubeconfig %s: %w", file, err)
	}
	if _, err := rest.TransportFor(c); err != nil {
		return nil, fmt.Errorf("read token webhook's kubeconfig %s: %w", file, err)
	}
	return &WebhookSettings{Config: c, File: file, Version: version, TTL: ttl}, nil
}

// newWebhook calls the webhook, and caches its results except errors.
func newWebhook(s WebhookSettings, audiences []string, d Deps, _ *Metrics) (authenticator.Token, error) {
	c := rest.CopyConfig(s.Config)
	ref := extension.Ref{Point: extension.TokenWebhook, Name: c.Host}
	d.Ledger.Register(ref, s.File)
	c.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &booked{ledger: d.Ledger, ref: ref, next: egress.SameOrigin(next)}
	})
	if s.Retry.Steps == 0 {
		s.Retry = webhookRetry
	}
	w, err := webhook.New(c, s.Version, audiences, s.Retry)
	if err != nil {
		return nil, fmt.Errorf("make token webhook: %w", err)
	}
	return cache.New(w, false, s.TTL, s.TTL), nil
}

// webhookRetry equals upstream's: a call with a retriable error is repeated four times.
var webhookRetry = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package review authorizes requests through a webhook: it posts a SubjectAccessReview, whose status is the decision.
//
// k8s.io/apiserver's own authorizer encodes, caches, retries and evaluates match conditions, so that all of this is
// exact. Every call that it makes goes through the extension ledger ([New]). The rules of a webhook cannot be listed
// ([Authorizer.Review]).
package review

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/cel"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/apiserver/authorize"
)

// Options of [New].
type Options struct {
	Ledger   *extension.Ledger
	Compiler cel.Compiler // of match conditions
	Metrics  metrics.AuthorizerMetrics
	// Dial connects to the webhook; nil: the default dialer. The other fields are required.
	Dial egress.Dial
}

// Authorizer authorizes requests through a webhook.
type Authorizer struct {
	authorize.Authorizer
	name string
}

// Name returns the name in the configuration.
func (z *Authorizer) Name() string { return z.name }

// Review reports that a webhook's rules cannot be listed.
func (z *Authorizer) Review(context.Context, user.Info, string) ([]authorizationv1.ResourceRule, []authorizationv1.NonResourceRule, bool,
	error) {
	return nil, nil, true, errors.New("webhook authorizer does not support user rule resolution") // upstream's words
}

// New makes the authorizer of a webhook from its validated configuration.
func New(name string, c *apiserver.WebhookConfiguration, o Options) (*Authorizer, error) {
	config, err := webhookutil.LoadKubeconfig(*c.ConnectionInfo.KubeConfigFile, o.Dial)
	if err != nil {
		return nil, err
	}
	if c.Timeout.Duration != 0 {
		config.Timeout = c.Timeout.Duration
	}
	onError := authorizer.DecisionNoOpinion
	switch c.FailurePolicy {
	case apiserver.FailurePolicyNoOpinion:
	case apiserver.FailurePolicyDeny:
		onError = authorizer.DecisionDeny
	default:
		return nil, fmt.Errorf("unknown failurePolicy %q", c.FailurePolicy) // upstream's words
	}
	authorized, unauthorized := c.AuthorizedTTL.Duration, c.UnauthorizedTTL.Duration
	if !c.CacheAuthorizedRequests {
		authorized = 0
	}
	if !c.CacheUnauthorizedRequests {
		unauthorized = 0
	}
	ref := extension.Ref{Point: extension.AuthorizationWebhook, Name: name}
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return &booked{ref: ref, ledger: o.Ledger, next: egress.SameOrigin(next)}
	})
	z, err := webhook.New(config, c.SubjectAccessReviewVersion, authorized, unauthorized, *webhook.DefaultRetryBackoff(), onError,
		c.MatchConditions, name, o.Metrics, o.Compiler)
	if err != nil {
		return nil, err
	}
	return &Authorizer{authorize.Library(z.Authorize), name}, nil
}

// maxAnswer is the maximum size of a webhook's response.
const maxAnswer = 3 << 20

// booked is a transport that records its calls in the ledger. A call fails if there is no response, or if the response
// is not a review.
type booked struct {
	ref    extension.Ref
	ledger *extension.Ledger
	next   http.RoundTripper
}

// RoundTrip implements [http.RoundTripper]. It returns the transport's own error.
func (b *booked) RoundTrip(r *http.Request) (answer *http.Response, own error) {
	err := b.ledger.Call(r.Context(), b.ref, extension.Policy{}, func(ctx context.Context) error {
		answer, own = b.next.RoundTrip(r.WithContext(ctx))
		if own != nil {
			return b.blame(r, own)
		}
		body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer+1))
		_ = answer.Body.Close()
		if len(body) > maxAnswer {
			answer, own = nil, fmt.Errorf("the answer is longer than %d bytes", maxAnswer)
			return own
		}
		answer.Body = &replayed{Reader: bytes.NewReader(body), end: err}
		if err != nil {
			return b.blame(r, err)
		}
		return judge(answer.StatusCode, body)
	})
	if own == nil && answer == nil {
		own = err // the ledger prevented the call
	}
	return answer, own
}

// blame returns err, unless the client of the API left.
func (b *booked) blame(r *http.Request, err error) error {
	if errors.Is(r.Context().Err(), context.Canceled) {
		return nil
	}
	return err
}

// judge returns what is wrong with a response; nil: nothing.
func judge(code int, body []byte) error {
	if code < 200 || code > 299 {
		return fmt.Errorf("the webhook answered %d %s", code, http.StatusText(code))
	}
	var is struct {
		APIVersion, Kind string
	}
	if err := json.Unmarshal(body, &is); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	if is.Kind != "SubjectAccessReview" {
		return fmt.Errorf("the answer is no SubjectAccessReview: apiVersion %q, kind %q", is.APIVersion, is.Kind)
	}
	return nil
}

// replayed is a body that was read, with the error at its end.
type replayed struct {
	io.Reader
	end error
}

func (b *replayed) Read(p []byte) (int, error) {
	n, err := b.Reader.Read(p)
	if err == io.EOF && b.end != nil {
		err = b.end
	}
	return n, err
}

func (b *replayed) Close() error { return nil }

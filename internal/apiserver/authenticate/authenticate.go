// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package authenticate authenticates requests.
//
// [New] builds, from [Settings], the [Authenticators] of a server, in kube-apiserver's order:
//
//	front proxy → client certificate → token → anonymous
//
// and among the tokens (bearer, or in a WebSocket's protocols)
//
//	file → service account (legacy, then bound) → bootstrap → issuers of JWTs → webhook
//
// Unlike kube-apiserver, which ignores an unknown token beside a valid certificate, this server rejects such a request.
//
// The first authenticator that knows the credential decides ([Authenticators.Authenticate]). A credential that no
// authenticator knows is an error, never anonymous. Results of issuers and of the webhook are cached for ten seconds by
// token, with one call for concurrent requests. Decisions that depend on the store alone (service accounts, bootstrap
// tokens) are made each time, so that a token ends with the commit that deletes the object it is bound to. Only
// signatures are cached ([Accounts]).
//
// [Accounts] also signs service account tokens, with a local key or through an external process ([External]), and
// publishes the keys ([Accounts.Discovery]). [Authenticators.Run] follows files that change.
package authenticate

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	apiserverconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/resource"
)

// ErrUnauthorized is the error of an unknown token.
var ErrUnauthorized = errors.New("invalid bearer token") // upstream's words

// Groups and users that authentication assigns.
const (
	Authenticated   = user.AllAuthenticated
	Unauthenticated = user.AllUnauthenticated
	AnonymousUser   = user.Anonymous
)

// Authenticator verifies one kind of credential. It returns false if the request has no such credential.
type Authenticator = authenticator.Request

// Settings are a server's authentication options, read and validated. The zero value accepts client certificates and
// service account tokens, and authenticates all other requests as anonymous.
type Settings struct {
	// ServerID is the server's identity, for metrics.
	ServerID string
	// Audiences are the identifiers of the API, one of which a token must contain; nil: the issuers of service account
	// tokens.
	Audiences []string
	// ClientCAs verify client certificates, besides the server's own CA; nil: none.
	ClientCAs *Bundle
	// FrontProxy trusts a proxy's headers; nil: there is none.
	FrontProxy *FrontProxy
	// Accounts configures how service account tokens are signed and verified.
	Accounts AccountSettings
	// StaticTokens are the tokens of a file; nil: none.
	StaticTokens authenticator.Token
	// BootstrapTokens accepts the tokens of bootstrap secrets.
	BootstrapTokens bool
	// JWT configures issuers of tokens, from flags or a file; nil: none.
	JWT *JWTSettings
	// Webhook is called last; nil: none.
	Webhook *WebhookSettings
	// Anonymous configures anonymous access; nil: allowed everywhere.
	Anonymous *apiserverconfig.AnonymousAuthConfig
}

// Deps are the dependencies of authenticators.
type Deps struct {
	// Objects reads the objects that tokens are bound to.
	Objects func() Objects
	// Label sets a label of the secret with that UID.
	Label  func(ctx context.Context, namespace, name string, uid types.UID, key, value string) error
	Ledger *extension.Ledger
	Egress *egress.Selector // the proxies for issuers that request one
	Log    *slog.Logger
	Now    func() time.Time
	ID     string // the server's identity, for metrics
}

// Objects is the part of the store that authenticators read.
type Objects interface {
	Get(ctx context.Context, r schema.GroupResource, namespace, name string) (resource.Object, error)
}

// Authenticators are the authenticators of a server. They are safe for concurrent use.
type Authenticators struct {
	audiences []string
	accounts  *Accounts // nil: there is no signer
	requests  []Authenticator
	tokens    authenticator.Token
	anonymous func(path string) bool
	frontage  *FrontProxy
	jwt       *jwt // nil: there are no issuers
	metrics   *Metrics
	now       func() time.Time
	runs      []func(ctx context.Context)
}

// The lifetimes of cached results for tokens that others verify.
const (
	tokenSuccessTTL = 10 * time.Second
	tokenFailureTTL = 0
)

// New makes the authenticators. Background work, such as the discovery of issuers, continues until ctx ends. further
// are third-party authenticators, which come before anonymous access. Without a signer in s there are no service
// account tokens.
func New(ctx context.Context, s Settings, own *Certificate, d Deps, further ...Authenticator) (*Authenticators, error) {
	if d.Log == nil {
		d.Log = slog.New(slog.DiscardHandler)
	}
	if d.Now == nil {
		d.Now = time.Now
	}
	a := &Authenticators{anonymous: anonymity(s.Anonymous), frontage: s.FrontProxy, now: d.Now, metrics: newMetrics()}
	issuers := s.Accounts.issuers()
	a.audiences = s.Audiences
	if len(a.audiences) == 0 {
		a.audiences = issuers
	}
	if s.FrontProxy != nil {
		a.requests = append(a.requests, s.FrontProxy.authenticator(d.Now))
		a.runs = append(a.runs, func(ctx context.Context) { s.FrontProxy.Authorities.Run(ctx, d.Log) })
	}
	if own != nil {
		own.Further = s.ClientCAs
		a.requests = append(a.requests, own)
	}
	if s.ClientCAs != nil {
		a.runs = append(a.runs, func(ctx context.Context) { s.ClientCAs.Run(ctx, d.Log) })
	}
	var local, remote []authenticator.Token
	if s.StaticTokens != nil {
		local = append(local, authenticator.WrapAudienceAgnosticToken(a.audiences, s.StaticTokens))
	}
	if s.Accounts.Signer != nil {
		a.accounts = newAccounts(s.Accounts, a.audiences, d, a.metrics)
		local = append(local, authenticator.TokenFunc(a.accounts.AuthenticateToken))
		if x, ok := s.Accounts.Signer.(*External); ok {
			x.measure(a.metrics)
			a.runs = append(a.runs, func(ctx context.Context) { x.Run(ctx, d.Log) })
		}
	}
	if s.BootstrapTokens {
		local = append(local, authenticator.WrapAudienceAgnosticToken(a.audiences, &bootstrapTokens{objects: d.Objects, now: d.Now}))
	}
	if s.JWT != nil {
		j, err := newJWT(ctx, *s.JWT, a.audiences, issuers, d, a.metrics)
		if err != nil {
			return nil, err
		}
		a.jwt, remote = j, append(remote, j)
		if s.JWT.File != "" {
			a.runs = append(a.runs, j.run)
		}
	}
	if s.Webhook != nil {
		w, err := newWebhook(*s.Webhook, a.audiences, d, a.metrics)
		if err != nil {
			return nil, err
		}
		remote = append(remote, w)
	}
	all := local
	if len(remote) > 0 {
		all = append(all, a.forServer(cache.New(union.New(remote...), true, tokenSuccessTTL, tokenFailureTTL)))
	}
	switch len(all) {
	case 0:
	case 1:
		a.tokens = all[0]
	default:
		a.tokens = union.New(all...)
	}
	if a.tokens != nil {
		bearer := bearertoken.New(a.tokens)
		a.requests = append(a.requests, bearer, websocket.NewProtocolAuthenticator(a.tokens))
		if own != nil {
			own.Tokens = func(r *http.Request) error {
				_, _, err := bearer.AuthenticateRequest(r)
				return err
			}
		}
	}
	a.requests = append(a.requests, further...)
	return a, nil
}

// forServer sets the server's audiences for t if the context has none.
func (a *Authenticators) forServer(t authenticator.Token) authenticator.Token {
	return authenticator.TokenFunc(func(ctx context.Context, token string) (*authenticator.Response, bool, error) {
		if _, ok := authenticator.AudiencesFrom(ctx); !ok && len(a.audiences) > 0 {
			ctx = authenticator.WithAudiences(ctx, a.audiences)
		}
		return t.AuthenticateToken(ctx, token)
	})
}

// Accounts returns the signer and verifier of service account tokens; nil without a signer.
func (a *Authenticators) Accounts() *Accounts { return a.accounts }

// Audiences returns the default audiences of tokens.
func (a *Authenticators) Audiences() []string { return a.audiences }

// Metrics returns the metrics of authentication.
func (a *Authenticators) Metrics() *Metrics { return a.metrics }

// Run follows files that change until ctx ends.
func (a *Authenticators) Run(ctx context.Context) {
	ended := make(chan struct{})
	for _, run := range a.runs {
		go func() {
			run(ctx)
			ended <- struct{}{}
		}()
	}
	for range a.runs {
		<-ended
	}
}

// Authenticate returns the user of the request, and counts the result. It removes the credential from the request's
// headers. Without a credential, if that is allowed, the user is [AnonymousUser].
func (a *Authenticators) Authenticate(r *http.Request) (user.Info, error) {
	begun := a.now()
	resp, err := a.ask(r)
	if err == nil && resp != nil && !a.acceptable(resp.Audiences) {
		err = fmt.Errorf("unable to match the audience: %v , accepted: %v", resp.Audiences, a.audiences) // upstream's words
		a.metrics.observe("", "error", a.now().Sub(begun))
		return nil, err
	}
	switch {
	case err != nil:
		a.metrics.observe("", "error", a.now().Sub(begun))
		return nil, err
	case resp == nil:
		a.metrics.observe("", "failure", a.now().Sub(begun))
		return nil, ErrUnauthorized
	}
	a.metrics.observe(resp.User.GetName(), "success", a.now().Sub(begun))
	r.Header.Del("Authorization")
	if a.frontage != nil || hasRemote(r.Header) {
		clearHeaders(r.Header, standardHeaders)
		if a.frontage != nil {
			clearHeaders(r.Header, a.frontage.Headers)
		}
	}
	return resp.User, nil
}

func (a *Authenticators) acceptable(got []string) bool {
	return len(a.audiences) == 0 || len(got) == 0 || len(authenticator.Audiences(a.audiences).Intersect(got)) > 0
}

// ask calls the authenticators in order. It adds the group of all authenticated users unless the user is anonymous.
func (a *Authenticators) ask(r *http.Request) (*authenticator.Response, error) {
	var errs []error
	for _, q := range a.requests {
		resp, ok, err := q.AuthenticateRequest(r)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if ok {
			return withGroup(resp), nil
		}
	}
	if len(errs) > 0 {
		return nil, utilerrors.NewAggregate(errs)
	}
	path := ""
	if r.URL != nil {
		path = r.URL.Path
	}
	if a.anonymous(path) {
		audiences, _ := authenticator.AudiencesFrom(r.Context())
		return &authenticator.Response{User: anonymousUser, Audiences: audiences}, nil
	}
	return nil, nil
}

// withGroup adds the group of all authenticated users, unless the user is anonymous or has it.
func withGroup(resp *authenticator.Response) *authenticator.Response {
	if resp.User.GetName() == AnonymousUser {
		return resp
	}
	groups := resp.User.GetGroups()
	for _, g := range groups {
		if g == Authenticated || g == Unauthenticated {
			return resp
		}
	}
	return &authenticator.Response{Audiences: resp.Audiences, User: &user.DefaultInfo{
		Name: resp.User.GetName(), UID: resp.User.GetUID(), Extra: resp.User.GetExtra(),
		Groups: append(append(make([]string, 0, len(groups)+1), groups...), Authenticated),
	}}
}

// Verify returns the user of a token and the audiences for which it is valid; nil audiences: the server's own.
func (a *Authenticators) Verify(ctx context.Context, token string, audiences []string) (user.Info, []string, error) {
	if len(audiences) == 0 {
		audiences = a.audiences
	}
	// like a request with nothing but the token, because request authenticators are called too
	r := &http.Request{Header: http.Header{"Authorization": {"Bearer " + token}}}
	resp, err := a.ask(r.WithContext(authenticator.WithAudiences(bare{ctx}, audiences)))
	if err != nil { // upstream first calls an authenticator that knows only its own token
		return nil, nil, utilerrors.NewAggregate([]error{ErrUnauthorized, err})
	}
	if resp == nil {
		return nil, nil, nil
	}
	if len(audiences) > 0 && len(authenticator.Audiences(audiences).Intersect(resp.Audiences)) == 0 {
		return nil, nil, ErrAudiences
	}
	return resp.User, resp.Audiences, nil
}

// bare is a context without its values, so that warnings and annotations about a token do not reach the reviewer's
// request.
type bare struct{ context.Context }

// Value returns nil.
func (bare) Value(any) any { return nil }

// ErrAudiences is returned when an authenticator returns audiences that were not requested.
var ErrAudiences error = audiencesError{}

type audiencesError struct{}

func (audiencesError) Error() string     { return "error validating audiences" } // upstream's words
func (audiencesError) InvalidAudiences() {}

// anonymousUser is the user of requests without credentials.
var anonymousUser = &user.DefaultInfo{Name: AnonymousUser, Groups: []string{Unauthenticated}}

// anonymity returns a function that reports whether anonymous requests are allowed at a path.
func anonymity(c *apiserverconfig.AnonymousAuthConfig) func(path string) bool {
	if c == nil {
		return func(string) bool { return true }
	}
	enabled, conditions := c.Enabled, c.Conditions
	return func(path string) bool {
		if !enabled || len(conditions) == 0 {
			return enabled
		}
		for _, o := range conditions {
			if o.Path == path {
				return true
			}
		}
		return false
	}
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"os"
	"sync/atomic"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiserverconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	"k8s.io/client-go/util/cert"

	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/apiserver/reload"
)

// JWTSettings configure the accepted issuers of JWTs.
type JWTSettings struct {
	Config *apiserverconfig.AuthenticationConfiguration
	// Algorithms are the accepted signature algorithms; nil: all.
	Algorithms []string
	// File is the path of the configuration, and Data its content. Empty: the configuration is from flags, and does not
	// change.
	File string
	Data []byte
}

// LoadJWT reads an AuthenticationConfiguration. It must not contain issuers of service account tokens.
func LoadJWT(file string, accountIssuers []string) (*JWTSettings, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read authentication configuration: %w", err)
	}
	c, err := parseConfiguration(data)
	if err != nil {
		return nil, fmt.Errorf("read authentication configuration %s: %w", file, err)
	}
	s := &JWTSettings{Config: c, File: file, Data: data}
	if err := s.Check(accountIssuers); err != nil {
		return nil, fmt.Errorf("authentication configuration %s: %w", file, err)
	}
	return s, nil
}

// Check validates the configuration including its expressions.
func (s *JWTSettings) Check(accountIssuers []string) error {
	if len(accountIssuers) == 0 {
		accountIssuers = []string{Issuer}
	}
	if err := validation.ValidateAuthenticationConfiguration(authenticationcel.NewDefaultCompiler(), s.Config,
		accountIssuers).ToAggregate(); err != nil {
		return fmt.Errorf("invalid authentication configuration: %w", err)
	}
	for _, a := range s.Algorithms {
		known := false
		for _, k := range oidc.AllValidSigningAlgorithms() {
			known = known || a == k
		}
		if !known {
			return fmt.Errorf("oidc: unsupported signing alg: %q", a) // upstream's words
		}
	}
	return nil
}

// parseConfiguration decodes any version of an AuthenticationConfiguration strictly.
func parseConfiguration(data []byte) (*apiserverconfig.AuthenticationConfiguration, error) {
	if len(data) == 0 {
		return nil, errors.New("empty config data") // upstream's words
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	obj, err := runtime.Decode(serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDecoder(), data)
	if err != nil {
		return nil, err
	}
	c, ok := obj.(*apiserverconfig.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("expected AuthenticationConfiguration, got %T", obj) // upstream's words
	}
	return c, nil
}

// jwt authenticates by the issuers of the current configuration.
type jwt struct {
	JWTSettings
	audiences []string
	disallow  []string
	deps      Deps
	metrics   *Metrics
	now       atomic.Pointer[issuers]

	seen []byte // the last read content that needs no further attempt
	wait time.Duration
	keep time.Duration
}

// issuers are the issuers of one configuration.
type issuers struct {
	authenticator.Token
	clients []IssuerClient
	healthy func() error
	cancel  context.CancelFunc
}

// IssuerClient is what a client of an issuer needs, by which users get its tokens.
type IssuerClient struct {
	URL, DiscoveryURL string   // DiscoveryURL is empty if it follows from URL
	Audiences         []string // accepted ones
	Client            *http.Client
}

// Issuers returns the accepted issuers of JWTs, from the current configuration.
func (a *Authenticators) Issuers() []IssuerClient {
	if a.jwt == nil {
		return nil
	}
	return a.jwt.now.Load().clients
}

// Times for the change to a new configuration.
const (
	issuersWait  = time.Minute            // for the discovery of new issuers
	issuersCheck = 100 * time.Millisecond // interval of the check for discovery
	issuersKeep  = time.Minute            // for requests that still use the old issuers
)

func newJWT(ctx context.Context, s JWTSettings, audiences, accountIssuers []string, d Deps, m *Metrics) (*jwt, error) {
	j := &jwt{
		JWTSettings: s, audiences: audiences, disallow: accountIssuers, deps: d, metrics: m, seen: s.Data, wait: issuersWait,
		keep: issuersKeep,
	}
	first, err := j.build(ctx, s.Config)
	if err != nil {
		return nil, err
	}
	j.now.Store(first)
	j.register(s.Config)
	if s.File != "" {
		m.inForce(d.ID, s.Data)
	}
	return j, nil
}

// AuthenticateToken implements [authenticator.Token].
func (j *jwt) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	return j.now.Load().AuthenticateToken(ctx, token)
}

// build makes the issuers of a configuration. Their discovery runs in the background until ctx ends: an unavailable
// issuer delays no request.
func (j *jwt) build(ctx context.Context, c *apiserverconfig.AuthenticationConfiguration) (_ *issuers, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		if err != nil {
			cancel()
		}
	}()
	algorithms := j.Algorithms
	if algorithms == nil {
		algorithms = oidc.AllValidSigningAlgorithms()
	}
	var all []authenticator.Token
	var checks []func() error
	var clients []IssuerClient
	for _, a := range c.JWT {
		client, err := j.client(a.Issuer)
		if err != nil {
			return nil, err
		}
		o, err := oidc.New(ctx, oidc.Options{
			JWTAuthenticator: a, Client: client, SupportedSigningAlgs: algorithms, DisallowedIssuers: j.disallow, APIServerID: j.deps.ID,
		})
		if err != nil {
			return nil, fmt.Errorf("make authenticator of issuer %s: %w", a.Issuer.URL, err)
		}
		all, checks = append(all, o), append(checks, o.HealthCheck)
		clients = append(clients, IssuerClient{a.Issuer.URL, a.Issuer.DiscoveryURL, a.Issuer.Audiences, client})
	}
	return &issuers{
		Token:   authenticator.WrapAudienceAgnosticToken(j.audiences, union.NewFailOnError(all...)),
		clients: clients,
		healthy: func() error {
			var errs []error
			for _, check := range checks {
				errs = append(errs, check())
			}
			return errors.Join(errs...)
		},
		cancel: cancel,
	}, nil
}

func (j *jwt) client(i apiserverconfig.Issuer) (*http.Client, error) {
	dial, err := j.way(i.EgressSelectorType)
	if err != nil {
		return nil, err
	}
	t := &tls.Config{MinVersion: tls.VersionTLS12}
	if i.CertificateAuthority != "" {
		pool, err := cert.NewPoolFromBytes([]byte(i.CertificateAuthority))
		if err != nil {
			return nil, fmt.Errorf("issuer %s: read certificate authority: %w", i.URL, err)
		}
		t.RootCAs = pool
	}
	next := net.SetTransportDefaults(&http.Transport{DialContext: dial, TLSClientConfig: t})
	called := &booked{ledger: j.deps.Ledger, ref: extension.Ref{Point: extension.OIDCIssuer, Name: i.URL}, next: next}
	return &http.Client{Timeout: 30 * time.Second, Transport: &shortLived{called}}, nil
}

// way returns the dialer of the proxy that an issuer requests.
func (j *jwt) way(t apiserverconfig.EgressSelectorType) (dial egress.Dial, err error) {
	switch s := j.deps.Egress; {
	case t == "":
		return nil, nil
	case s == nil:
		return nil, fmt.Errorf("oidc: egress lookup must be configured when egress selector type is set, type: %q", t) // upstream's words
	case t == apiserverconfig.EgressSelectorCluster:
		dial = s.Cluster()
	case t == apiserverconfig.EgressSelectorControlPlane:
		dial = s.ControlPlane()
	}
	if dial == nil {
		return nil, fmt.Errorf("oidc: egress lookup for %q is not configured", t) // upstream's words
	}
	return dial, nil
}

// keysLife is the maximum time in seconds that an issuer's keys are cached while tokens name unknown keys. The library
// subtracts thirty.
const keysLife = 31

// shortLived makes the library fetch an issuer's keys again when a token names an unknown key, at most once a second.
// Many issuers allow caching their keys for hours: tokens signed with a new key would be rejected for so long.
type shortLived struct{ next http.RoundTripper }

// RoundTrip implements [http.RoundTripper].
func (s *shortLived) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := s.next.RoundTrip(r)
	if err == nil && (resp.Header.Get("Cache-Control") != "" || resp.Header.Get("Expires") != "") {
		resp.Header.Del("Expires")
		resp.Header.Set("Cache-Control", fmt.Sprintf("max-age=%d", keysLife))
	}
	return resp, err
}

// register lists the issuers in the ledger.
func (j *jwt) register(c *apiserverconfig.AuthenticationConfiguration) {
	where := map[string]string{}
	for _, a := range c.JWT {
		where[a.Issuer.URL] = j.File
		if j.File == "" {
			where[a.Issuer.URL] = "--oidc-issuer-url"
		}
	}
	j.deps.Ledger.RegisterAll(extension.OIDCIssuer, where)
}

// run reads the file again when it changes.
func (j *jwt) run(ctx context.Context) {
	reload.Watch(ctx, rereadEvery, j.deps.Log, func() { j.reload(ctx) }, j.File)
}

// reload applies the current content of the file if it is valid and its issuers are discovered; otherwise the old
// configuration stays in force.
func (j *jwt) reload(ctx context.Context) {
	failed := func(doing string, err error) {
		if ctx.Err() != nil {
			return
		}
		j.deps.Log.ErrorContext(ctx, "Could not "+doing+" the authentication configuration, keeping the previous one", "file", j.File,
			"error", err)
		j.metrics.reloaded(j.deps.ID, false, j.deps.Now(), nil)
	}
	data, err := os.ReadFile(j.File)
	if err != nil {
		failed("read", err)
		return
	}
	if bytes.Equal(data, j.seen) {
		return
	}
	c, err := parseConfiguration(data)
	if err != nil {
		j.seen = data // this content can never become valid
		failed("read", err)
		return
	}
	errs := validation.ValidateAuthenticationConfiguration(authenticationcel.NewDefaultCompiler(), c, j.disallow)
	if !apiequality.Semantic.DeepEqual(j.Config.Anonymous, c.Anonymous) {
		errs = append(errs, field.Forbidden(field.NewPath("anonymous"), "changed from initial configuration file"))
	}
	if err := errs.ToAggregate(); err != nil {
		j.seen = data
		failed("validate", err)
		return
	}
	if err := j.replace(ctx, c); err != nil {
		failed("apply", err) // a later attempt may succeed
		return
	}
	j.seen = data
	j.deps.Log.InfoContext(ctx, "Reloaded the authentication configuration", "file", j.File, "issuers", len(c.JWT))
	j.metrics.reloaded(j.deps.ID, true, j.deps.Now(), data)
}

// replace waits for the discovery of the new issuers and replaces the old ones. The new ones live until ctx ends.
func (j *jwt) replace(ctx context.Context, c *apiserverconfig.AuthenticationConfiguration) error {
	next, err := j.build(ctx, c)
	if err != nil {
		return err
	}
	late := time.NewTimer(j.wait)
	defer late.Stop()
	look := time.NewTicker(issuersCheck) // the library only answers polls
	defer look.Stop()
	for err = next.healthy(); err != nil; err = next.healthy() {
		select {
		case <-ctx.Done():
			next.cancel()
			return ctx.Err()
		case <-late.C:
			next.cancel()
			return err
		case <-look.C:
		}
	}
	old := j.now.Swap(next)
	j.register(c)
	time.AfterFunc(j.keep, old.cancel)
	return nil
}

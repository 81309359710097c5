// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"cmp"
	"context"
	"crypto"
	"errors"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"
	apiserverconfig "k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"

	"github.com/mortise-dev/mortise/embed/options"
	"github.com/mortise-dev/mortise/extension"
	"github.com/mortise-dev/mortise/extension/egress"
	"github.com/mortise-dev/mortise/internal/apiserver/authenticate"
)

// authentication is the parsed settings of authentication.
type authentication struct {
	settings authenticate.Settings
	keys     []crypto.PublicKey     // of the files
	external *authenticate.External // signs tokens instead of a local key; nil: a local key signs
}

// readAuthentication reads the files of authenticators, and refuses invalid settings.
func readAuthentication(
	ctx context.Context, a *options.Authentication, modes []string, ledger *extension.Ledger, egress *egress.Selector,
) (*authentication, error) {
	n := &authentication{}
	if err := n.read(a, modes, egress); err != nil {
		return nil, err
	}
	if err := n.readKeys(ctx, &a.ServiceAccounts, ledger); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

// read reads everything but the keys of service accounts.
func (n *authentication) read(a *options.Authentication, modes []string, egress *egress.Selector) error {
	s := &n.settings
	if err := errors.Join(checkIssuers(a), checkOIDC(a), checkRequestHeader(a)); err != nil {
		return err
	}
	s.Audiences, s.BootstrapTokens = a.APIAudiences, a.BootstrapTokens
	var err error
	if a.ClientCAFile != "" {
		if s.ClientCAs, err = authenticate.LoadBundle(a.ClientCAFile); err != nil {
			return fmt.Errorf("--client-ca-file: %w", err)
		}
	}
	if s.FrontProxy, err = frontProxy(&a.RequestHeader); err != nil {
		return err
	}
	if a.TokenFile != "" {
		if s.StaticTokens, err = tokenfile.NewCSV(a.TokenFile); err != nil {
			return fmt.Errorf("--token-auth-file: %w", err)
		}
	}
	if s.JWT, err = issuers(a); err != nil {
		return err
	}
	if s.Anonymous, err = anonymous(a, s.JWT, modes); err != nil {
		return err
	}
	if w := &a.TokenWebhook; w.ConfigFile != "" {
		ttl := 2 * time.Minute
		if w.CacheTTL != nil {
			ttl = *w.CacheTTL
		}
		if s.Webhook, err = authenticate.LoadWebhook(w.ConfigFile, cmp.Or(w.Version, "v1beta1"), ttl); err != nil {
			return err
		}
		s.Webhook.Config.Dial = egress.ControlPlane()
	}
	return nil
}

// readKeys reads the keys that sign and verify service-account tokens, except for the cluster's own key.
func (n *authentication) readKeys(ctx context.Context, a *options.ServiceAccounts, ledger *extension.Ledger) (err error) {
	s := &n.settings.Accounts
	s.Issuers, s.JWKSURI, s.MaxExpiration = a.Issuers, a.JWKSURI, a.MaxExpiration
	s.NoLookup = a.Lookup != nil && !*a.Lookup
	s.NoExtend = a.ExtendExpiration != nil && !*a.ExtendExpiration
	if a.SigningEndpoint != "" {
		if len(a.KeyFiles) > 0 || a.SigningKeyFile != "" {
			// upstream's words
			return errors.New("cannot set mutually exclusive flags `--service-account-key-file` and `--service-account-signing-endpoint` at the same time")
		}
		if n.external, err = authenticate.DialExternal(ctx, a.SigningEndpoint, ledger, time.Now); err != nil {
			return err
		}
		most := n.external.MaxExpiration()
		if s.MaxExpiration > most {
			// upstream's words
			return fmt.Errorf("service-account-max-token-expiration cannot be set longer than the token expiration supported by service-account-signing-endpoint: %s > %s", s.MaxExpiration, most)
		}
		s.MaxExpiration, s.MaxExtended = cmp.Or(s.MaxExpiration, most), most
		s.Signer, s.Keys = n.external, n.external
		return nil
	}
	if n.keys, err = authenticate.LoadKeys(a.KeyFiles...); err != nil {
		return err
	}
	if a.SigningKeyFile != "" {
		signer, public, err := authenticate.LoadSigner(a.SigningKeyFile)
		if err != nil {
			return err
		}
		s.Signer = signer
		n.keys = withKey(n.keys, public)
	}
	return nil
}

// withKey adds the signing key, so that the server accepts its own tokens.
func withKey(keys []crypto.PublicKey, key crypto.PublicKey) []crypto.PublicKey {
	type comparable interface{ Equal(crypto.PublicKey) bool }
	if slices.ContainsFunc(keys, func(k crypto.PublicKey) bool { c, ok := k.(comparable); return ok && c.Equal(key) }) {
		return keys
	}
	return append(keys, key)
}

// withOwnKey returns the settings with the cluster's own key, unless another signs.
func (n *authentication) withOwnKey(key crypto.PublicKey) (s authenticate.Settings, err error) {
	s = n.settings
	if s.ServerID, err = serverID(); err != nil {
		return s, err
	}
	keys := n.keys
	if n.external != nil || len(keys) == 0 {
		return s, nil
	}
	if s.Accounts.Signer == nil {
		keys = withKey(keys, key)
	}
	if s.Accounts.Keys, err = authenticate.NewKeys(keys...); err != nil {
		return s, fmt.Errorf("make authentication: %w", err)
	}
	return s, nil
}

// close closes the connection to the external signer, which the server may have closed already.
func (n *authentication) close() {
	if n != nil && n.external != nil {
		_ = n.external.Close()
	}
}

func checkIssuers(a *options.Authentication) error {
	var errs []error
	seen := map[string]bool{}
	for _, i := range a.ServiceAccounts.Issuers {
		_, err := url.Parse(i)
		switch {
		case i == "":
			errs = append(errs, errors.New("service-account-issuer should not be an empty string")) // upstream's words
		case strings.Contains(i, ":") && err != nil:
			errs = append(errs, fmt.Errorf("service-account-issuer %q contained a ':' but was not a valid URL: %w", i, err)) // upstream's words
		case seen[i]:
			errs = append(errs, fmt.Errorf("service-account-issuer %q is already specified", i)) // upstream's words
		}
		seen[i] = true
	}
	if uri := a.ServiceAccounts.JWKSURI; uri != "" {
		if u, err := url.Parse(uri); err != nil {
			errs = append(errs, fmt.Errorf("service-account-jwks-uri must be a valid URL: %w", err)) // upstream's words
		} else if u.Scheme != "https" {
			errs = append(errs, fmt.Errorf("service-account-jwks-uri requires https scheme, parsed as: %v", u)) // upstream's words
		}
	}
	return errors.Join(errs...)
}

func checkOIDC(a *options.Authentication) error {
	switch {
	case a.ConfigFile != "" && a.OIDC.Set():
		return errors.New("authentication-config file and oidc-* flags are mutually exclusive") // upstream's words
	case a.ConfigFile == "" && a.OIDC.Set() && (a.OIDC.IssuerURL == "" || a.OIDC.ClientID == ""):
		return errors.New("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set") // upstream's words
	}
	return nil
}

func checkRequestHeader(a *options.Authentication) error {
	h := &a.RequestHeader
	for flag, names := range map[string][]string{
		"requestheader-username-headers": h.UsernameHeaders, "requestheader-uid-headers": h.UIDHeaders,
		"requestheader-group-headers": h.GroupHeaders, "requestheader-extra-headers-prefix": h.ExtraHeaderNames,
		"requestheader-allowed-names": h.AllowedNames,
	} {
		for _, n := range names {
			if strings.TrimSpace(n) == "" {
				return fmt.Errorf("empty value in %q", flag) // upstream's words
			}
		}
	}
	if len(h.UIDHeaders) > 0 && !slices.ContainsFunc(h.UIDHeaders, func(n string) bool { return strings.EqualFold(n, "X-Remote-Uid") }) {
		// upstream's words
		return errors.New("--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - API aggregation will not work")
	}
	if a.ClientCAFile != "" && h.ClientCAFile != "" && len(h.AllowedNames) == 0 {
		clients, err := authenticate.LoadBundle(a.ClientCAFile)
		if err != nil {
			return fmt.Errorf("--client-ca-file: %w", err)
		}
		proxies, err := authenticate.LoadBundle(h.ClientCAFile)
		if err != nil {
			return fmt.Errorf("--requestheader-client-ca-file: %w", err)
		}
		if clients.Overlaps(proxies) {
			// upstream's words
			return errors.New("--requestheader-client-ca-file and --client-ca-file contain overlapping certificates; --requestheader-allowed-names must be specified to ensure regular client certificates cannot set authenticating proxy headers for arbitrary users")
		}
	}
	return nil
}

// frontProxy returns nil without a file: the server then trusts the cluster's own.
func frontProxy(h *options.RequestHeader) (*authenticate.FrontProxy, error) {
	if h.ClientCAFile == "" {
		return nil, nil
	}
	ca, err := authenticate.LoadBundle(h.ClientCAFile)
	if err != nil {
		return nil, fmt.Errorf("--requestheader-client-ca-file: %w", err)
	}
	return &authenticate.FrontProxy{Authorities: ca, Names: h.AllowedNames, Headers: authenticate.Headers{
		Username: h.UsernameHeaders, UID: h.UIDHeaders, Group: h.GroupHeaders, ExtraPrefixes: h.ExtraHeaderNames,
	}}, nil
}

// issuers returns the JWT issuers of the file or of the flags; nil if there are none.
func issuers(a *options.Authentication) (*authenticate.JWTSettings, error) {
	if a.ConfigFile != "" {
		return authenticate.LoadJWT(a.ConfigFile, a.ServiceAccounts.Issuers)
	}
	f := &a.OIDC
	if f.IssuerURL == "" {
		return nil, nil
	}
	claim, prefix := cmp.Or(f.UsernameClaim, "sub"), f.UsernamePrefix
	switch {
	case prefix == "-":
		prefix = ""
	case prefix == "" && claim != "email":
		prefix = f.IssuerURL + "#"
	}
	j := apiserverconfig.JWTAuthenticator{
		Issuer:        apiserverconfig.Issuer{URL: f.IssuerURL, Audiences: []string{f.ClientID}},
		ClaimMappings: apiserverconfig.ClaimMappings{Username: apiserverconfig.PrefixedClaimOrExpression{Prefix: &prefix, Claim: claim}},
	}
	if f.GroupsClaim != "" {
		j.ClaimMappings.Groups = apiserverconfig.PrefixedClaimOrExpression{Prefix: &f.GroupsPrefix, Claim: f.GroupsClaim}
	}
	if f.CAFile != "" {
		pem, err := os.ReadFile(f.CAFile)
		if err != nil {
			return nil, fmt.Errorf("--oidc-ca-file: %w", err)
		}
		j.Issuer.CertificateAuthority = string(pem)
	}
	for claim, value := range f.RequiredClaims {
		j.ClaimValidationRules = append(j.ClaimValidationRules, apiserverconfig.ClaimValidationRule{Claim: claim, RequiredValue: value})
	}
	s := &authenticate.JWTSettings{Config: &apiserverconfig.AuthenticationConfiguration{JWT: []apiserverconfig.JWTAuthenticator{j}},
		Algorithms: f.SigningAlgs}
	if len(s.Algorithms) == 0 {
		s.Algorithms = []string{"RS256"}
	}
	return s, s.Check(a.ServiceAccounts.Issuers)
}

// anonymous returns the configuration of anonymous access; nil: allowed everywhere. With AlwaysAllow it is not allowed.
func anonymous(a *options.Authentication, j *authenticate.JWTSettings, modes []string) (*apiserverconfig.AnonymousAuthConfig, error) {
	if j != nil && j.File != "" && j.Config.Anonymous != nil {
		if a.Anonymous != nil {
			return nil, field.Forbidden(field.NewPath("anonymous"),
				"--anonymous-auth flag cannot be set when anonymous field is configured in authentication configuration file")
		}
		return j.Config.Anonymous, nil
	}
	if slices.Contains(modes, "AlwaysAllow") {
		return &apiserverconfig.AnonymousAuthConfig{}, nil
	}
	if a.Anonymous != nil {
		return &apiserverconfig.AnonymousAuthConfig{Enabled: *a.Anonymous}, nil
	}
	return nil, nil
}

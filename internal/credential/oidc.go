// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package credential

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/mortise-dev/mortise/internal/durable"
)

// OIDC requests an ID token from an OpenID Connect issuer, by a refresh token. If the issuer returns a new refresh token, OIDC replaces the
// old one in the file.
type OIDC struct {
	Issuer, ClientID string
	// ClientSecretFile may be empty for a public client.
	ClientSecretFile string
	RefreshTokenFile string
	// CAFile has the CAs of the issuer's certificate; empty: the system's.
	CAFile string
	Scopes []string
}

// issuerWait is the timeout of requests to the issuer.
const issuerWait = 30 * time.Second

// Get implements [Source].
func (o *OIDC) Get(ctx context.Context) (Token, error) {
	ctx, cancel := context.WithTimeout(ctx, issuerWait)
	defer cancel()
	client, err := o.client()
	if err != nil {
		return Token{}, err
	}
	defer client.CloseIdleConnections()
	endpoint, err := o.discover(ctx, client)
	if err != nil {
		return Token{}, err
	}
	unlock, err := lock(o.RefreshTokenFile + ".lock") // with many issuers a refresh token is valid once
	if err != nil {
		return Token{}, fmt.Errorf("lock refresh token: %w", err)
	}
	defer unlock()
	refresh, err := readToken(o.RefreshTokenFile)
	if err != nil {
		return Token{}, fmt.Errorf("read refresh token: %w", err)
	}
	said, err := o.refresh(ctx, client, endpoint, refresh)
	if err != nil {
		return Token{}, err
	}
	if said.Refresh != "" && said.Refresh != refresh {
		if err := durable.Write(o.RefreshTokenFile, 0o600, []byte(said.Refresh+"\n")); err != nil {
			return Token{}, fmt.Errorf("keep the new refresh token; the old one may be of no use any more: %w", err)
		}
	}
	return Token{said.ID, expiry(said.ID)}, nil
}

// Name implements [Source].
func (o *OIDC) Name() string {
	return named("oidc", o.Issuer, o.ClientID, o.RefreshTokenFile, o.CAFile, strings.Join(o.Scopes, " "))
}

func (o *OIDC) client() (*http.Client, error) {
	u, err := url.Parse(o.Issuer)
	if err != nil || u.Scheme != "https" || u.Host == "" {
		return nil, fmt.Errorf("issuer %q: want an https URL", o.Issuer)
	}
	t := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: &tls.Config{MinVersion: tls.VersionTLS12}}
	if o.CAFile != "" {
		pem, err := os.ReadFile(o.CAFile)
		if err != nil {
			return nil, fmt.Errorf("read certificate authority: %w", err)
		}
		t.TLSClientConfig.RootCAs = x509.NewCertPool()
		if !t.TLSClientConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("read certificate authority: %s has no certificate", o.CAFile)
		}
	}
	// requests to the issuer contain secrets: follow no redirects
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, nil
}

// discover returns the issuer's token endpoint.
func (o *OIDC) discover(ctx context.Context, client *http.Client) (string, error) {
	at := strings.TrimSuffix(o.Issuer, "/") + "/.well-known/openid-configuration"
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return "", fmt.Errorf("discover issuer: %w", err)
	}
	var said struct {
		Issuer string `json:"issuer"`
		Token  string `json:"token_endpoint"`
	}
	if err := do(client, r, &said); err != nil {
		return "", fmt.Errorf("discover issuer: %w", err)
	}
	if said.Issuer != o.Issuer {
		return "", fmt.Errorf("discover issuer: %s names the issuer %q", at, said.Issuer)
	}
	if u, err := url.Parse(said.Token); err != nil || u.Scheme != "https" {
		return "", fmt.Errorf("discover issuer: token endpoint %q: want an https URL", said.Token)
	}
	return said.Token, nil
}

type tokens struct {
	ID      string `json:"id_token"`
	Refresh string `json:"refresh_token"`
}

func (o *OIDC) refresh(ctx context.Context, client *http.Client, endpoint, refresh string) (tokens, error) {
	form := url.Values{"grant_type": {"refresh_token"}, "refresh_token": {refresh}, "client_id": {o.ClientID}}
	if len(o.Scopes) > 0 {
		form.Set("scope", strings.Join(o.Scopes, " "))
	}
	secret := ""
	if o.ClientSecretFile != "" {
		var err error
		if secret, err = readToken(o.ClientSecretFile); err != nil {
			return tokens{}, fmt.Errorf("read client secret: %w", err)
		}
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, endpoint, strings.NewReader(form.Encode()))
	if err != nil {
		return tokens{}, fmt.Errorf("ask issuer: %w", err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if secret != "" {
		r.SetBasicAuth(url.QueryEscape(o.ClientID), url.QueryEscape(secret))
	}
	var said tokens
	if err := do(client, r, &said); err != nil {
		return tokens{}, fmt.Errorf("ask issuer %s for a token: %w", o.Issuer, err)
	}
	if said.ID == "" {
		return tokens{}, fmt.Errorf("ask issuer %s for a token: the answer has no id_token; was the refresh token given for the scope openid?",
			o.Issuer)
	}
	return said, nil
}

// do sends a request and decodes the JSON of the answer. Its errors contain the issuer's error message, never a token.
func do(client *http.Client, r *http.Request, into any) error {
	resp, err := client.Do(r)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxFile))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		var said struct {
			Error       string `json:"error"`
			Description string `json:"error_description"`
		}
		if json.Unmarshal(b, &said) == nil && said.Error != "" {
			return fmt.Errorf("%s: %s %s", resp.Status, said.Error, said.Description)
		}
		return errors.New(resp.Status)
	}
	if err := json.Unmarshal(b, into); err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	return nil
}

// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
)

// users finds the users of credentials.
type users struct {
	authn Authenticator
	now   func() time.Time
}

// who returns the user of a session; an error: its token is not valid any more.
func (u *users) who(ctx context.Context, s *session) (user.Info, error) {
	if s.User != nil {
		return s.User.info(), nil
	}
	return u.byToken(ctx, s.Token)
}

// authenticated returns the user of a request's own credentials, who is not anonymous.
func (u *users) authenticated(r *http.Request) (user.Info, error) {
	who, err := u.authn.Authenticate(r)
	if err != nil {
		return nil, err
	}
	if who.GetName() == user.Anonymous || slices.Contains(who.GetGroups(), user.AllUnauthenticated) {
		return nil, newStatus(http.StatusUnauthorized, "the request has no credentials")
	}
	return who, nil
}

// byToken returns the user of a bearer token.
func (u *users) byToken(ctx context.Context, token string) (user.Info, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, Root, http.NoBody)
	if err != nil {
		return nil, newStatus(http.StatusInternalServerError, err.Error())
	}
	r.Header.Set("Authorization", "Bearer "+token)
	who, err := u.authenticated(r)
	if err != nil {
		return nil, newStatus(http.StatusUnauthorized, "the token is not valid")
	}
	return who, nil
}

// tokenSession returns the session of a valid bearer token. It ends with the token.
func (u *users) tokenSession(ctx context.Context, token string) (*session, error) {
	if token == "" || strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c >= 0x7f }) {
		return nil, newStatus(http.StatusUnauthorized, "the token is not valid")
	}
	if _, err := u.byToken(ctx, token); err != nil {
		return nil, err
	}
	s := &session{Token: token, Expires: u.now().Add(sessionLife)}
	if ends := tokenEnd(token); !ends.IsZero() {
		s.Expires = earlier(s.Expires, ends)
	}
	return s, nil
}

// certificateSession returns the session of the client certificate of a request's connection. It ends with the certificate.
func (u *users) certificateSession(r *http.Request) (*session, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, newStatus(http.StatusUnauthorized, "the connection has no client certificate")
	}
	bare := r.WithContext(r.Context())
	bare.Header = http.Header{} // the certificate alone
	who, err := u.authenticated(bare)
	if err != nil {
		return nil, err
	}
	return &session{User: personOf(who), Expires: earlier(u.now().Add(sessionLife), r.TLS.PeerCertificates[0].NotAfter)}, nil
}

// ownSession returns the session of a request's own credentials: of its certificate, which counts before a token for the API too, of its
// token, or of a user that a proxy in front names.
func (u *users) ownSession(r *http.Request) (*session, error) {
	token, hasToken := bearer(r)
	who, err := u.authenticated(r)
	if err != nil {
		return nil, newStatus(http.StatusUnauthorized, "Unauthorized")
	}
	if s, err := u.certificateSession(r); err == nil {
		return s, nil
	}
	if hasToken {
		return u.tokenSession(r.Context(), token)
	}
	return &session{User: personOf(who), Expires: u.now().Add(sessionLife)}, nil
}

// tokenEnd returns when a JWT expires by its own account; zero: it does not say, or is none.
func tokenEnd(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		return time.Time{}
	}
	var claims struct {
		Expires float64 `json:"exp"`
	}
	if json.Unmarshal(payload, &claims) != nil || claims.Expires <= 0 || claims.Expires > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(claims.Expires), 0)
}

// bearer returns the bearer token of a request.
func bearer(r *http.Request) (string, bool) {
	scheme, token, ok := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "bearer")
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

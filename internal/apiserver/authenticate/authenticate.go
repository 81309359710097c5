// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

// Package authenticate finds out who makes a request.
//
// An [Authenticator] looks at one kind of credential; [Union] asks them in order, the first that knows the credential
// decides. A credential that is present and wrong is an error, never anonymous. The built-in ones are client certificates
// ([Certificate]), service-account tokens ([Tokens]) and, last, nobody ([Anonymous]).
package authenticate

import (
	"context"
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
)

// ErrUnauthorized is returned for a credential that is present and wrong.
var ErrUnauthorized = errors.New("invalid bearer token") // upstream's words

// Groups and users that authentication gives.
const (
	Authenticated   = "system:authenticated"
	Unauthenticated = "system:unauthenticated"
	AnonymousUser   = "system:anonymous"
)

// Authenticator knows one kind of credential. It answers nil when the request carries none of its kind.
type Authenticator interface {
	Authenticate(r *http.Request) (user.Info, error)
}

// Union asks in order.
type Union []Authenticator

// Authenticate returns the first answer; a user who is not anonymous is in the group of all authenticated users.
func (u Union) Authenticate(r *http.Request) (user.Info, error) {
	for _, a := range u {
		who, err := a.Authenticate(r)
		if who != nil || err != nil {
			return who, err
		}
	}
	return nil, ErrUnauthorized
}

// Connection remembers who a connection's client certificate says is there, so that it is verified once.
type Connection struct{ known atomic.Pointer[verified] }

type verified struct {
	leaf *x509.Certificate
	who  user.Info
}

type connectionKey struct{}

// WithConnection is the context of all requests of one new connection; give it to http.Server's ConnContext.
func WithConnection(ctx context.Context) context.Context {
	return context.WithValue(ctx, connectionKey{}, &Connection{})
}

// Certificate takes the subject of a verified client certificate: common name is the user, organizations the groups.
type Certificate struct {
	Roots *x509.CertPool
	Now   func() time.Time
}

// Authenticate verifies the certificate that the TLS handshake asked for.
func (c *Certificate) Authenticate(r *http.Request) (user.Info, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, nil
	}
	leaf := r.TLS.PeerCertificates[0]
	conn, _ := r.Context().Value(connectionKey{}).(*Connection)
	if conn != nil {
		if v := conn.known.Load(); v != nil && v.leaf == leaf && (c.Now == nil || c.Now().Before(leaf.NotAfter)) {
			return v.who, nil
		}
	}
	if len(r.TLS.VerifiedChains) == 0 {
		opts := x509.VerifyOptions{Roots: c.Roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, Intermediates: x509.NewCertPool()}
		if c.Now != nil {
			opts.CurrentTime = c.Now()
		}
		for _, i := range r.TLS.PeerCertificates[1:] {
			opts.Intermediates.AddCert(i)
		}
		if _, err := leaf.Verify(opts); err != nil {
			return nil, ErrUnauthorized
		}
	}
	if leaf.Subject.CommonName == "" {
		return nil, nil
	}
	groups := append(make([]string, 0, len(leaf.Subject.Organization)+1), leaf.Subject.Organization...)
	who := &user.DefaultInfo{Name: leaf.Subject.CommonName, UID: uid(leaf), Groups: append(groups, Authenticated)}
	if conn != nil {
		conn.known.Store(&verified{leaf: leaf, who: who})
	}
	return who, nil
}

// UIDAttribute names the attribute of a certificate's subject that holds the user's uid, as Kubernetes registered it.
func UIDAttribute() asn1.ObjectIdentifier { return asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2} }

func uid(c *x509.Certificate) string {
	oid := UIDAttribute()
	for _, n := range c.Subject.Names {
		if s, ok := n.Value.(string); ok && n.Type.Equal(oid) {
			return s
		}
	}
	return ""
}

// Anonymous takes everybody.
type Anonymous struct{}

// Authenticate answers system:anonymous.
func (Anonymous) Authenticate(*http.Request) (user.Info, error) {
	return &user.DefaultInfo{Name: AnonymousUser, Groups: []string{Unauthenticated}}, nil
}

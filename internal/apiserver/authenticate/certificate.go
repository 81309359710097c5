// SPDX-FileCopyrightText: The Mortise Authors
// SPDX-License-Identifier: Apache-2.0

package authenticate

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
)

// Connection caches the user of a connection's client certificate, so that the certificate is verified once.
type Connection struct{ known atomic.Pointer[verified] }

type verified struct {
	leaf  *x509.Certificate
	roots *x509.CertPool // of Further at the time of verification
	until time.Time
	resp  *authenticator.Response
}

type connectionKey struct{}

// WithConnection returns the context of all requests of a new connection; use it as http.Server's ConnContext.
func WithConnection(ctx context.Context) context.Context {
	return context.WithValue(ctx, connectionKey{}, &Connection{})
}

// KubeletClientName is the common name of the certificate that API servers present to nodes. The API rejects it as a
// user, whatever its groups: otherwise a node could redirect the server to an API server, and receive responses with
// the server's permissions.
const KubeletClientName = "kube-apiserver-kubelet-client"

// Certificate authenticates by the subject of a verified client certificate: the common name is the user, the
// organizations are the groups.
type Certificate struct {
	Roots *x509.CertPool
	// Further are CAs from a file; nil: none.
	Further *Bundle
	Now     func() time.Time
	// Own is the certificate that the server created for its administrator. Its serial number is omitted from the
	// user's extra data, so that objects that store this data (CertificateSigningRequests) are the same in every
	// cluster. Nil: none.
	Own *x509.Certificate
	// Tokens, when set, rejects a request that also has an unknown token. The certificate still determines the user.
	Tokens func(r *http.Request) error
	// Seen, when set, is called with the remaining validity of each certificate.
	Seen func(left time.Duration)
}

// AuthenticateRequest verifies the client certificate of the TLS handshake.
func (c *Certificate) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, false, nil
	}
	leaf, now := r.TLS.PeerCertificates[0], time.Now()
	if c.Now != nil {
		now = c.Now()
	}
	if c.Seen != nil {
		c.Seen(leaf.NotAfter.Sub(now))
	}
	var further *x509.CertPool
	if c.Further != nil {
		further = c.Further.Pool()
	}
	conn, _ := r.Context().Value(connectionKey{}).(*Connection)
	if conn != nil {
		if v := conn.known.Load(); v != nil && v.leaf == leaf && v.roots == further && now.Before(v.until) {
			return c.beside(r, v.resp)
		}
	}
	chains, err := verify(r, c.Roots, now)
	if err != nil && further != nil {
		chains, err = verify(r, further, now)
	}
	if err != nil {
		return nil, false, err
	}
	resp, err := subject(leaf, leaf.Equal(c.Own))
	if err != nil {
		return nil, false, err
	}
	if conn != nil {
		conn.known.Store(&verified{leaf: leaf, roots: further, until: ends(chains), resp: resp})
	}
	return c.beside(r, resp)
}

// beside checks a token beside the certificate.
func (c *Certificate) beside(r *http.Request, resp *authenticator.Response) (*authenticator.Response, bool, error) {
	if resp == nil {
		return nil, false, nil
	}
	if c.Tokens != nil && len(r.Header["Authorization"]) > 0 {
		if err := c.Tokens(r); err != nil {
			return nil, false, err
		}
	}
	return resp, true, nil
}

// verify checks the client's certificate against roots.
func verify(r *http.Request, roots *x509.CertPool, now time.Time) ([][]*x509.Certificate, error) {
	if roots == nil {
		return nil, errors.New("no authority of client certificates")
	}
	o := x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}, CurrentTime: now}
	if len(r.TLS.PeerCertificates) > 1 {
		o.Intermediates = x509.NewCertPool()
		for _, i := range r.TLS.PeerCertificates[1:] {
			o.Intermediates.AddCert(i)
		}
	}
	chains, err := r.TLS.PeerCertificates[0].Verify(o)
	if err != nil {
		leaf := r.TLS.PeerCertificates[0]
		return nil, fmt.Errorf("verify client certificate of %q, serial %d: %w", leaf.Subject.CommonName, leaf.SerialNumber, err)
	}
	return chains, nil
}

// ends returns the latest expiration of the chains.
func ends(chains [][]*x509.Certificate) time.Time {
	var longest time.Time
	for _, chain := range chains {
		end := chain[0].NotAfter
		for _, c := range chain {
			if c.NotAfter.Before(end) {
				end = c.NotAfter
			}
		}
		if end.After(longest) {
			longest = end
		}
	}
	return longest
}

// subject returns the user in a verified certificate; nil if it contains none.
func subject(leaf *x509.Certificate, own bool) (*authenticator.Response, error) {
	switch leaf.Subject.CommonName {
	case "":
		return nil, nil
	case KubeletClientName:
		return nil, fmt.Errorf("the certificate of %s is for nodes alone", KubeletClientName)
	}
	id, err := uid(leaf)
	if err != nil {
		return nil, err
	}
	print := sha256.Sum256(leaf.Raw)
	groups := append(make([]string, 0, len(leaf.Subject.Organization)+1), leaf.Subject.Organization...)
	who := &user.DefaultInfo{Name: leaf.Subject.CommonName, UID: id, Groups: groups}
	if !own {
		who.Extra = map[string][]string{user.CredentialIDKey: {"X509SHA256=" + hex.EncodeToString(print[:])}}
	}
	return withGroup(&authenticator.Response{User: who}), nil
}

// UIDAttribute returns the OID of the subject attribute with the user's UID, as Kubernetes registered it.
func UIDAttribute() asn1.ObjectIdentifier { return asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 57683, 2} }

func uid(c *x509.Certificate) (string, error) {
	oid, found := UIDAttribute(), ""
	n := 0
	for _, a := range c.Subject.Names {
		if !a.Type.Equal(oid) {
			continue
		}
		s, ok := a.Value.(string)
		if !ok {
			return "", errors.New("unable to parse UID into a string") // upstream's words
		}
		found = s
		n++
	}
	switch {
	case n == 0:
		return "", nil
	case n > 1:
		return "", fmt.Errorf("expected 1 UID, but found multiple") // upstream's words
	case found == "":
		return "", errors.New("UID cannot be an empty string") // upstream's words
	}
	return found, nil
}
